"""`python -m offbeat`."""

from offbeat.cli import main

main(prog_name="offbeat")
