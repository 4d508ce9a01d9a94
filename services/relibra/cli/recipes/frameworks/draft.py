"""The settings of a recipe while the reader of its framework collects them, as Megatron names them."""

from collections.abc import Mapping, Sequence
from typing import Any

from relibra.cli.recipes.arguments import at_path, parse
from relibra.cli.recipes.launch import Launch
from relibra.cli.recipes.plug_in import is_resumable, missing_lines
from relibra.cli.recipes.recipe import Given, Recipe
from relibra.cli.recipes.shipped import (
    WRAPPER_OPTIONS,
    Family,
    family_origin,
    find_family,
    framework_data,
    is_neutral,
    known_options,
    origin,
)
from relibra.cli.recipes.unknown import is_known, show_unknown

_RENAMED = {
    "fp8_format": "fp8",
    "fp4_format": "fp4",
    "num_experts": "num_moe_experts",
    "moe_router_padding_for_fp8": "moe_router_padding_for_quantization",
    "use_custom_fsdp": "use_megatron_fsdp",
    "virtual_pipeline_parallel_size": "virtual_pipeline_model_parallel_size",
}
"""Arguments that have another name in Megatron's configurations."""
_OF_EXPERTS = ("fc1", "fc2", "gate_proj", "up_proj", "down_proj", "gate_up_proj", "experts")


class Draft:
    """The settings of a recipe that are known so far. Later values of a setting replace earlier ones."""

    def __init__(self, framework: str, launch: Launch) -> None:
        self.framework = framework
        self.launch = launch
        self.data = framework_data(framework)
        self.plug_in: Sequence[str] = self.data.get("plug_in", ())
        self.settings: dict[str, Given] = {}
        self.warnings: list[str] = []
        self.unknown: list[str] = []
        self.model = ""
        self.family: Family | None = None

    def put(self, name: str, value: Any, origin: str) -> None:
        """Set a value that comes from an origin."""
        self.settings[name] = Given(value, origin)

    def put_line(self, name: str, value: Any, *options: str) -> None:
        """Set a value that comes from the line which sets one of the recipe's options."""
        self.put(name, value, self.launch.line_of(*options))

    def put_defaults(self) -> None:
        """Set the defaults of the framework."""
        for name, value in self.data["settings"].items():
            self.put(name, value, origin(self.data))

    def begin(self, model: Any, *, has_provider: bool) -> None:
        """Set the defaults of a model's family and of the framework.

        Args:
            model: the name or path of the model.
            has_provider: whether the provider of Megatron-Bridge builds the model.
        """
        if (family := self.find_family(model)) is not None:
            settings = family.settings if has_provider else {}
            for name, value in (settings | {"has_shared_experts": family.has_shared_experts}).items():
                self.put(name, value, family_origin(family))
        self.put_defaults()

    def find_family(self, model: Any) -> Family | None:
        """Find the family of a model by its name, else by the name of the recipe; say so if neither tells."""
        self.name_model(model)
        if self.family is None:
            self.family = find_family("/".join(self.launch.path.absolute().parts[-4:]))
            said = (
                "is of no family known here, so defaults of its provider are not known"
                if self.family is None
                else f"is taken for a {self.family.name}, from the name of the recipe"
            )
            self.warnings.append(f"the model {show_unknown(str(model or '')) or '(not named)'} {said}")
        return self.family

    def name_model(self, model: Any) -> None:
        """Keep the name of a model, and its family if the name tells it."""
        path = show_unknown(str(model or ""))
        self.model, self.family = path.rstrip("/").rpartition("/")[2], find_family(path)

    def take(self, values: Mapping[str, Any], section: str = "") -> None:
        """Take values under Megatron's names, and list those that Megatron's configurations do not have.

        Args:
            values: the values.
            section: the path of the values in the recipe's configuration; empty on a command line.
        """
        for option, value in values.items():
            name = _RENAMED.get(option, option)
            where = self._line(option, section)
            if option == "moe_enable_deepep":
                if value:
                    self.put("moe_flex_dispatcher_backend", "deepep", where)
            elif isinstance(value, str) and not is_known(value):
                if not is_neutral(name):
                    self.warnings.append(
                        f"{where}: the value of {option} is {show_unknown(value)}, which the file does not tell"
                    )
                    self.settings.pop(name, None)
            elif name in known_options() or name in WRAPPER_OPTIONS:
                self.put(name, value, where)
            elif not is_neutral(name) and all(option != rule["option"] for rule in self.data.get("refused", ())):
                self.unknown.append(f"{option} ({where})")

    def take_sections(self, *paths: str) -> None:
        """Take the values of sections of the configuration, but not those of the framework's own keys."""
        for path in paths:
            values = self.launch.section(path)
            self.take({name: value for name, value in values.items() if name not in self.data.get("own", ())}, path)

    def is_parallel_in_context(self) -> bool:
        """Return whether the recipe cuts sequences over ranks, as far as the file tells."""
        given = self.settings.get("context_parallel_size")
        return given is not None and isinstance(given.value, int) and given.value > 1

    def lora(self, rank: Any, targets: Any, *options: str) -> None:
        """Set the names of Megatron-Bridge's LoRA. A rank of 0 or None means that there is no LoRA."""
        if isinstance(rank, str) and rank.isdigit():
            rank = int(rank)
        if not rank:
            return
        words = (
            targets.replace(",", " ").split() if isinstance(targets, str) else [str(target) for target in targets or ()]
        )
        # Bridge wraps grouped experts in one adapter; adapters on attention alone leave experts as they are.
        is_on_experts = any(_is_of_experts(word) for word in words)
        values = {"lora_rank": rank, "target_modules": words, "share_expert_adapters": is_on_experts}
        for name, value in values.items():
            self.put_line(name, value, *options)

    def expect_megatron(self, is_chosen: object, otherwise: str) -> None:
        """Warn if the recipe does not train with Megatron; `otherwise` says how it shows."""
        if not is_chosen:
            self.warnings.append(f"{otherwise}; relibra balances Megatron only")

    def recipe(self) -> Recipe:
        """Return the recipe that was read."""
        for rule in self.data.get("refused", ()):
            option = rule["option"]
            if (value := self._own(option)) and not self._own(rule.get("unless", "")):
                self.put_line(option, value, option, f"--{option.replace('_', '-')}")
        return Recipe(
            framework=self.framework,
            megatron_core=self.data["megatron_core"],
            model=self.model,
            family=self.family.name if self.family is not None else "",
            settings=self.settings,
            unknown=tuple(self.unknown),
            warnings=(*self.launch.warnings, *self.warnings),
            missing_lines=missing_lines(self.launch, self.plug_in),
            is_resumable=is_resumable(self.launch),
        )

    def _own(self, option: str) -> Any:
        """Return the value of the framework's own option: of a path in its configuration, or of a command line."""
        value = self.launch.options().get(option) if option not in WRAPPER_OPTIONS else None  # which readers take
        return at_path(self.launch.merged_config, option) or (parse(value) if isinstance(value, str) else value)

    def _line(self, name: str, section: str) -> str:
        if not section:
            return self.launch.line_of(name, f"--{name.replace('_', '-')}")
        where = self.launch.line_of(f"{section}.{name}")
        is_file = self.launch.config and not self.launch.words
        return where if is_file or where.startswith("line") else self.launch.line_of(name)


def _is_of_experts(target: str) -> bool:
    """Return whether a target of LoRA names products of experts."""
    return target in ("all-linear", "all", "*") or (
        "shared" not in target and any(target.endswith(ending) for ending in _OF_EXPERTS)
    )
