"""Results as tables and pictures; reads run folders and nothing else."""
