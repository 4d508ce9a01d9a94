"""`keep_log`: what relibra says is printed, whatever other packages do to the log of their process.

vLLM's servers import a package (`model_hosting_container_standards`) that lets the root logger, and its handlers, take
errors alone. verl imports these servers in processes of the rollout and of training, too. In processes of AReaL,
`logging.root` is another object than the root of all loggers, so that is asked of the loggers.
"""

import logging


def keep_log() -> None:
    """Print relibra's warnings to stderr where no handler of the root logger takes them. A second call does nothing."""
    logger = logging.getLogger("relibra")
    for name in list(logger.manager.loggerDict):  # AReaL's configuration of the log turns loggers off that exist
        if name.startswith("relibra"):
            logging.getLogger(name).disabled = False
    if any(isinstance(handler, _WhereRootIsSilent) for handler in logger.handlers):
        return
    logger.addHandler(_WhereRootIsSilent(logging.WARNING))
    if logger.level == logging.NOTSET:
        logger.setLevel(min(logging.WARNING, logger.root.level or logging.WARNING))


class _WhereRootIsSilent(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if logging.lastResort is not None and not any(
            handler.level <= record.levelno for handler in logging.Logger.root.handlers
        ):
            logging.lastResort.handle(record)
