"""The search for hyperparameters: spaces, methods, trials, and their table, figure and files."""
