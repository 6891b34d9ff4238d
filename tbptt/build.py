"""Configuration -> objects. The only module that knows Hydra and omegaconf; nothing of theirs gets past it."""

import functools
import inspect
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hydra
import lightning as L
import torch
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from lightning.pytorch.callbacks import EarlyStopping
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from torch import nn
from torch.optim import Optimizer

from tbptt import checkpoint
from tbptt.budget import choose
from tbptt.callbacks import CheckpointFiles, Checkpoints, Monitor
from tbptt.construct import Recipe, call, instance, target
from tbptt.data import TextDataModule, truncation
from tbptt.errors import UserError, check_choice, check_integer, check_number
from tbptt.length import trainer_arguments, training_length
from tbptt.memory import Prediction, Setting
from tbptt.module import OptimizerFactory, SchedulerFactory
from tbptt.nn import LanguageModel
from tbptt.run import Run
from tbptt.text import Corpus, Options, read_data
from tbptt.vocabulary_memory import vocabulary_lines

CONFIGS = Path(__file__).resolve().parent.parent / "configs"

# Dtypes of weights, and of products beside float32 weights, by Lightning's names.
TRUE = {"64-true": torch.float64, "bf16-true": torch.bfloat16, "16-true": torch.float16}
MIXED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
# Where torch has one kernel for all parameters, on these devices.
FUSED = ("torch.optim.Adam", "torch.optim.AdamW", "torch.optim.SGD")

SECTIONS = {"data", "model", "task", "bptt", "optimizer", "scheduler", "trainer", "callbacks", "logger"}
SECTIONS |= {"seed", "resume"}

log = logging.getLogger(__name__)


def command(name: str) -> Callable[[Callable[[Recipe, Path], Any]], Callable[[], None]]:
    """Turn a function of (recipe, run folder) into a command line with the configuration `configs/NAME.yaml`.

    A mistake of the user is one message and exit status 2, without a traceback; in a sweep the other jobs still run.
    """

    def decorate(function: Callable[[Recipe, Path], Any]) -> Callable[[], None]:
        @functools.wraps(function)
        def job(config: DictConfig) -> Any:
            quiet_lightning()
            try:
                return function(plain(config), Path(HydraConfig.get().runtime.output_dir))
            except UserError as error:
                log.error("error: %s", error)
                if HydraConfig.get().mode == RunMode.MULTIRUN:
                    raise
                sys.exit(2)

        main: Callable[[], None] = hydra.main(config_path=str(CONFIGS), config_name=name, version_base="1.3")(job)
        return main

    return decorate


def quiet_lightning() -> None:
    """Keep Lightning's start-up notices out of the log; its warnings stay, but for three that do not apply."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # Lightning asks torch in a way that newer torch wants otherwise; nothing a user could do about it.
    warnings.filterwarnings("ignore", message=".*LeafSpec.* is deprecated", category=FutureWarning)
    # So does this one, of a function that Lightning calls for us.
    warnings.filterwarnings("ignore", message=".*all_gather.* is deprecated", category=FutureWarning)
    # Each process evaluates the whole text, so there is nothing to synchronise.
    warnings.filterwarnings("ignore", message=".*recommended to use `self.log.*sync_dist=True")


def plain(config: DictConfig) -> Recipe:
    """Resolve a configuration into dicts, lists, numbers and strings.

    Raises:
        UserError: for a value that must be given and is not, or an interpolation that leads nowhere.
    """
    try:
        recipe = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise UserError(f"{error.full_key} must be given; write {error.full_key}=VALUE.") from error
    except OmegaConfBaseException as error:
        raise UserError(f"{error.full_key}: {error}") from error
    assert isinstance(recipe, dict)
    return {str(key): value for key, value in recipe.items()}


def compose_recipe(overrides: list[str], name: str = "train") -> Recipe:
    """The recipe that these command-line overrides give, in a process that is no `command` too."""
    if GlobalHydra.instance().is_initialized():
        return plain(hydra.compose(name, overrides=overrides))
    with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return plain(hydra.compose(name, overrides=overrides))


def build(recipe: Recipe, folder: Path) -> Run:
    """All parts of a training run.

    Args:
        recipe: the configuration of `configs/train.yaml`, in plain types.
        folder: where the run writes.

    Raises:
        UserError: for a value that cannot work, before anything is trained or written.
    """
    check_keys(recipe)
    resume = resume_path(recipe["resume"])
    check_integer("seed", recipe["seed"], 0, "it starts all random generators")
    if recipe["seed"] >= 2**32:
        raise UserError(f"seed must be less than 2 ** 32, but it is {recipe['seed']}; give a smaller one.")
    L.seed_everything(recipe["seed"], workers=True, verbose=False)
    options, rest = read_options(recipe["data"])
    cuts = call(truncation, "bptt", recipe["bptt"], seed=recipe["seed"])
    data = call(TextDataModule, "data", rest, also=Options.names(), options=options, **cuts)
    model = call(LanguageModel, "model", recipe["model"], vocab_size=len(data.vocabulary))
    callbacks = {name: instance(f"callbacks.{name}", section) for name, section in recipe["callbacks"].items()}
    logger = instance("logger", recipe["logger"], save_dir=str(folder)) if recipe["logger"].get("_target_") else None
    section = trainer_arguments(recipe["trainer"], data.windows(), unused=model.core.initial_hidden is not None)
    trainer = build_trainer(section, list(callbacks.values()), logger, folder)
    # Asked of one process only: the others may start when it has begun to write.
    taken = trainer.is_global_zero and (folder / "checkpoints").exists()
    if taken and (resume is None or folder.resolve() not in resume.resolve().parents):
        raise UserError(
            f"hydra.run.dir={folder} holds a run already; give another folder, or go on with resume={folder}."
        )
    windows = data.train_loader(limit=section.get("limit_train_batches")).windows_per_pass
    length = functools.partial(training_length, trainer, windows)
    scheduler, interval = build_scheduler(recipe["scheduler"], length)
    stops = any(isinstance(callback, EarlyStopping) for callback in callbacks.values())
    if not trainer.limit_val_batches and (stops or "ReduceLROnPlateau" in str(recipe["scheduler"].get("_target_"))):
        what = "callbacks=early_stopping" if stops else "scheduler=plateau"
        raise UserError(f"{what} needs validation, and there is none; take another, or give data.val_path=FILE.")
    optimizer = build_optimizer(recipe["optimizer"], trainer)
    memory, vocabulary = build_memory(recipe["bptt"], model, data, trainer, optimizer)
    task = instance(
        "task",
        recipe["task"],
        model=model,
        vocabulary=data.vocabulary,
        optimizer=optimizer,
        scheduler=scheduler,
        interval=interval,
        recipe=recipe,
        corpus={"source": data.corpus.source, "sha256": data.corpus.sha256},
        plan=memory.plan,
    )
    return Run(
        trainer=trainer,
        task=task,
        data=data,
        checkpoints=one(callbacks, Checkpoints),
        monitor=one(callbacks, Monitor),
        folder=folder,
        seed=recipe["seed"],
        resume=resume,
        memory=memory,
        vocabulary=vocabulary,
    )


def read_options(section: Recipe) -> tuple[Options, Recipe]:
    """How text becomes tokens, from the section `data`, and the rest of that section."""
    chosen = {name: value for name, value in section.items() if name in Options.names()}
    rest = {name: value for name, value in section.items() if name not in chosen}
    return call(Options, "data", chosen), rest


def prepare(section: Recipe) -> Corpus:
    """The corpus that a section `data` describes, found prepared or made.

    Raises:
        UserError: for a value that cannot work, or a text that cannot be read.
    """
    options, rest = read_options(section)
    values = {name: rest[name] for name in rest.keys() - {"batch_size", "eval_batch_size"}}
    corpus: Corpus = call(read_data, "data", values, also=Options.names(), options=options)
    return corpus


def check_keys(recipe: Recipe) -> None:
    """Refuse a section that nothing reads."""
    wrong = recipe.keys() - SECTIONS
    if wrong:
        raise UserError(f"{', '.join(sorted(wrong))}: no such key; the top level has {', '.join(sorted(SECTIONS))}.")


def one(callbacks: dict[str, Any], kind: type) -> Any:
    """The callback of a kind that a run cannot do without."""
    found = [callback for callback in callbacks.values() if isinstance(callback, kind)]
    if len(found) != 1:
        raise UserError(f"callbacks must hold one {kind.__name__}, but they hold {len(found)}.")
    return found[0]


def build_trainer(values: Recipe, callbacks: list[Any], logger: Any, folder: Path) -> L.Trainer:
    """Lightning's trainer from its own arguments."""
    ours = {"enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1}
    trainer: L.Trainer = call(
        L.Trainer,
        "trainer",
        {**ours, **values},
        callbacks=callbacks,
        plugins=[CheckpointFiles()],
        logger=logger or False,
        default_root_dir=str(folder),
    )
    return trainer


def build_optimizer(section: Recipe, trainer: L.Trainer) -> OptimizerFactory:
    """From parameters to an optimizer, fused where torch has it for the device."""
    values = dict(section)
    device = trainer.strategy.root_device
    check_number("optimizer.lr", values.get("lr"), "it is the learning rate")
    # With a gradient scaler (16-mixed) a fused optimizer unscales by itself, and Lightning then refuses to clip.
    scaled = trainer.precision == "16-mixed"
    chosen = {"fused", "foreach"} & values.keys()
    if values.get("_target_") in FUSED and not (scaled or chosen) and device.type in ("cpu", "cuda"):
        values["fused"] = True

    def make(parameters: Iterator[nn.Parameter]) -> Optimizer:
        optimizer: Optimizer = instance("optimizer", values, params=list(parameters))
        return optimizer

    # A wrong value shows itself now, not when training starts.
    make(iter([nn.Parameter(torch.zeros(1))]))
    return make


def build_memory(
    section: Recipe, model: LanguageModel, data: TextDataModule, trainer: L.Trainer, optimizer: OptimizerFactory
) -> tuple[Prediction, tuple[str, str]]:
    """How windows are run and what that takes, and what the vocabulary takes.

    The model gets the weights' dtype, and what its kernel is to keep.
    """
    if trainer.precision in TRUE:
        model.to(TRUE[trainer.precision])
    device = trainer.strategy.root_device.type
    steps, context = data.longest_window()
    setting = Setting(
        model=model,
        streams=max(1, data.batch_size // trainer.world_size),
        steps=steps,
        context=context,
        optimizer=optimizer,
        accumulate=trainer.accumulate_grad_batches,
        compute_dtype=MIXED.get(trainer.precision, model.embedding.weight.dtype),
        device=device,
    )
    memory = choose(setting, section["chunk"], section["memory_mib"])
    model.core.save = memory.save
    return memory, vocabulary_lines(setting, memory)


def build_scheduler(section: Recipe, length: Callable[[str], int | None]) -> tuple[SchedulerFactory | None, str]:
    """From an optimizer to a learning-rate schedule, and whether it advances per "step" or per "epoch".

    A schedule that must know the length of training is told it, in its own unit.
    """
    values = dict(section)
    interval = values.pop("interval")
    check_choice("scheduler.interval", interval, ("step", "epoch"))
    if values.get("_target_") is None:
        if values.keys() - {"_target_"}:
            raise UserError(f"scheduler=constant has no {', '.join(sorted(values.keys() - {'_target_'}))}.")
        return None, interval
    parameters = inspect.signature(target("scheduler", values)).parameters
    for name in {"T_max", "total_steps"} & set(parameters) - set(values):
        values[name] = length(interval)
        if values[name] is None:
            raise UserError("scheduler needs to know how long training lasts; set trainer.max_epochs or max_steps.")

    def make(optimizer: Optimizer) -> Any:
        return instance("scheduler", values, optimizer=optimizer)

    return make, interval


def resume_path(resume: str | None) -> Path | None:
    """The checkpoint to go on from: a file, a run folder, or "last" for the newest below `runs`."""
    if resume is None:
        return None
    if resume == "last":
        return checkpoint.newest(Path("runs"))
    path = Path(str(resume)).expanduser()
    return path / "checkpoints" / "last.ckpt" if path.is_dir() else path
