"""The final comparison: the only measurements that a claim may stand on."""
