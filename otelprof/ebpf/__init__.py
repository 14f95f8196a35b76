"""The kernel's side as Python sees it: compiled objects, their loading and attaching, and what they hand over.

`session.Session` is the way in; the rest are its parts: `object` and `layout` (ELF, BTF, dtypes), `libbpf` and `loader`,
`attach`, `rings`, `maps`, `mappings` and `refusals`.
"""
