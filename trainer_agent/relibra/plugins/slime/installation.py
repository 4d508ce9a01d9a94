"""`install`: wrap the functions of slime or miles at which the agent must act and that have no hook."""

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

from relibra.plugins.points import check_points
from relibra.plugins.slime.framework import MILES, SLIME, Framework
from relibra.plugins.slime.training import BalancedTraining

FRAMEWORKS = {framework.name: framework for framework in (SLIME, MILES)}

_training: BalancedTraining | None = None


def install(args: Any, name: str) -> None:
    """Balance the training of this process. The framework calls this before it builds the model, on every rank.

    Args:
        args: the arguments of the job.
        name: slime or miles.

    Raises:
        InvalidInput: a setting is missing or wrong.
        Unsupported: this version of the framework lacks something that the plug-in relies on, or the job has an option
            with which relibra cannot balance it; the message names it.
    """
    global _training
    framework = FRAMEWORKS[name]
    modules = {module: import_module(f"{framework.package}.{module}") for module in framework.points}
    for module, points in framework.points.items():
        check_points(modules[module], points, version=framework.version, without="--custom-megatron-init-path")
    is_first = _training is None
    _training = BalancedTraining(framework, args)
    if is_first:
        _wrap_all(framework, modules)


def training() -> BalancedTraining:
    """Return the training of this process, after `install`."""
    assert _training is not None
    return _training


def _wrap_all(framework: Framework, modules: dict[str, Any]) -> None:
    """Wrap functions of modules, and no method of the actor.

    Ray takes the methods of an actor's class when it loads the class, and keeps them: a method that is replaced later
    is never called. Ray leaves attributes that are no functions, such as properties, alone.
    """
    actor = modules["actor"]
    _wrap(actor, "initialize_model_and_optimizer", _initialize)
    _wrap(actor, "get_data_iterator", _iterate)
    _wrap(actor, "forward_only", _forward_only)
    _wrap(actor, "train", _train)
    _wrap(actor, "TensorBackuper.create", _create_backuper)
    of_actor = actor.MegatronTrainRayActor
    of_actor.weight_updater = _noted("weight_updater", lambda updater: training().send_right_names(updater))
    of_actor.rollout_manager = _noted("rollout_manager", lambda manager: training().meet_manager(manager))
    _wrap(modules["model"], "get_forward_backward_func", _get_forward_backward_func)
    module, function = framework.saving
    _wrap(modules[module], function, _save_hf)


def _wrap(module: Any, path: str, around: Callable[..., Any]) -> None:
    """Replace a function by one that calls `around` with the function and its arguments."""
    *parents, name = path.split(".")
    owner = functools.reduce(getattr, parents, module)
    plain = getattr(owner, name)

    @functools.wraps(plain)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(plain, *args, **kwargs)

    is_static = isinstance(vars(owner).get(name), staticmethod)
    setattr(owner, name, staticmethod(wrapped) if is_static else wrapped)


def _initialize(plain: Callable[..., Any], args: Any, role: str = "actor", *more: Any, **named: Any) -> Any:
    built = plain(args, role, *more, **named)
    chunks, optimizer = built[:2]
    if optimizer is not None:
        training().attach(role, chunks, optimizer)
    return built


def _iterate(plain: Callable[..., Any], *args: Any, **named: Any) -> Any:
    made = plain(*args, **named)
    rollout_data = named["rollout_data"] if "rollout_data" in named else args[-1]
    # miles returns the numbers of micro-batches as well, and slime has them in the data.
    iterators, num_microbatches = made if isinstance(made, tuple) else (made, rollout_data["num_microbatches"])
    training().note_rollout(rollout_data, iterators, num_microbatches)
    return made


def _forward_only(plain: Callable[..., Any], *args: Any, store_prefix: str = "", **named: Any) -> Any:
    with training().log_probs(store_prefix):
        return plain(*args, store_prefix=store_prefix, **named)


def _train(plain: Callable[..., Any], *args: Any, **named: Any) -> Any:
    with training().updates():
        result = plain(*args, **named)
    training().tell_manager(named["rollout_id"] if "rollout_id" in named else args[0])
    return result


def _get_forward_backward_func(plain: Callable[..., Any], *args: Any, **named: Any) -> Callable[..., Any]:
    return functools.partial(training().run, plain(*args, **named))


def _create_backuper(plain: Callable[..., Any], *args: Any, **named: Any) -> Any:
    backuper = plain(*args, **named)
    training().follow(backuper)
    return backuper


def _noted(name: str, note: Callable[[Any], None]) -> property:
    """Return an attribute of the actor that calls `note` with each of its values."""

    def get(actor: Any) -> Any:
        if name not in vars(actor):
            raise AttributeError(name)
        return vars(actor)[name]

    def set_noted(actor: Any, value: Any) -> None:
        note(value)
        vars(actor)[name] = value

    return property(get, set_noted)


def _save_hf(plain: Callable[..., Any], *args: Any, **named: Any) -> Any:
    # The functions write files in one call, and hand out no stream whose names could be changed.
    with training().passes.at_original_places():
        return plain(*args, **named)
