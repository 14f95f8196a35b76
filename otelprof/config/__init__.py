"""Configuration in the Collector's grammar: YAML to checked, typed settings and routes, all mistakes at once.

What component packages need: `setting` and the unit types. What commands need: `load_file`, `load_text`, `load_values`.
"""

from otelprof.config.load import ComponentConfig, Configuration, load_file, load_text, load_texts, load_values, read_text
from otelprof.config.registry import Registry
from otelprof.config.routes import PipelineConfig, Route
from otelprof.config.settings import setting
from otelprof.config.units import ByteSize, Duration, Percent

__all__ = [
    "ByteSize",
    "ComponentConfig",
    "Configuration",
    "Duration",
    "Percent",
    "PipelineConfig",
    "Registry",
    "Route",
    "load_file",
    "load_text",
    "load_texts",
    "load_values",
    "read_text",
    "setting",
]
