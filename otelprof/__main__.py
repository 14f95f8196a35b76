"""`python -m otelprof`: the same as the command `otelprof`."""

from otelprof.cli import main

main()
