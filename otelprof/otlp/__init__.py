"""OTLP profiles and traces: the names, encoding, decoding, conformance rules and server.

The only room that knows dictionary indexes.
"""
