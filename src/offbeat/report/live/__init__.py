"""The live page: the runs under a folder, in a browser, while they run. It needs the extra `serve`."""

from offbeat.report.live.app import application, serve

__all__ = ["application", "serve"]
