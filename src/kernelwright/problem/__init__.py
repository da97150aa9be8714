"""What is to be computed: problems, workloads, expressions, configs and outcomes. Data only, no devices."""
