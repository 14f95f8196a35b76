"""Profile formats other than OTLP, each both ways: folded text, pprof, speedscope."""
