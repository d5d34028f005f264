"""Targets as data: what a compiler must be told and what a micro-kernel needs to know. No code."""
