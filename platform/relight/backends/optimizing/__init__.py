"""A model's file made smaller or quicker, and the proof that it still answers the same.

May live here: what turns a file into another one, real inputs to try both on, and the comparison of answers and of
speed. May not: the model repository (the command composes the two), anything that serves.
"""
