"""The virtual-time transport and the simulation of attackers."""
