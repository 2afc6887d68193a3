"""Run the command line with ``python -m epsilometer``, where scripts are not on the path."""

from epsilometer.cli.main import main

if __name__ == "__main__":
    main(prog_name="python -m epsilometer")
