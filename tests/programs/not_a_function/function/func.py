"""What ``new`` returns here is no function."""


def new() -> str:
    return "no function"
