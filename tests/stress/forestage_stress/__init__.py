"""The stress test of `./dev stress`; docs/developing.md says how to use it."""
