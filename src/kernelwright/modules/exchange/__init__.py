"""Problems of FlashInfer-Trace and SOL-ExecBench: definition, workloads and solutions, and programs for them."""
