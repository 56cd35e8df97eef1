"""Bodies of the `offbeat deploy` commands: bundles, keys, and supervision of Flower's programs."""
