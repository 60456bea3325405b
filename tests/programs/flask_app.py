"""The function of the working directory in a Flask application that has a route of its own."""

from flask import Flask
from function import new

from relight.runtime.hosts.flask import mount

app = Flask("service")


@app.get("/own")
def own() -> str:
    return "the service's own"


mount(new(), app)
