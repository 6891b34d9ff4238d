"""Measurements beside other ways to train: speed, memory, long windows, and what the trainer costs.

Nothing is imported here: a process that measures memory loads what it measures and no more.
"""
