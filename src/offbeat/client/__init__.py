"""The client runtime: train a job, encode the update, keep state between jobs."""
