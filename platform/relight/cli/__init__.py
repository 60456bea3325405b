"""The command line: one file per noun, composing what stands below.

May live here: arguments, progress, tables, exit codes. May not: logic that a program would want to call.
"""
