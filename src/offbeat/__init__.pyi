from offbeat import aggregation as _aggregation
from offbeat import algorithms as algorithms
from offbeat import cache as _cache
from offbeat import compression as _compression
from offbeat import flower as flower
from offbeat import models as models
from offbeat import schedules as schedules
from offbeat import scheduling as _scheduling
from offbeat import tasks as tasks
from offbeat.algorithms import CA2FL as CA2FL
from offbeat.algorithms import MIFA as MIFA
from offbeat.algorithms import Algorithm as Algorithm
from offbeat.algorithms import FedAsync as FedAsync
from offbeat.algorithms import FedAvg as FedAvg
from offbeat.algorithms import FedBuff as FedBuff
from offbeat.algorithms import optimizers as optimizers
from offbeat.client import rules as _rules
from offbeat.client.personalization import Personalization as Personalization
from offbeat.client.rules import SGD as SGD
from offbeat.client.rules import Adagrad as Adagrad
from offbeat.client.rules import Adam as Adam
from offbeat.client.rules import AdamW as AdamW
from offbeat.client.rules import ClientRule as ClientRule
from offbeat.client.rules import TorchOptimizer as TorchOptimizer
from offbeat.compression import Compression as Compression
from offbeat.data import Dataset as Dataset
from offbeat.data import augment as _augment
from offbeat.data import from_arrays as from_arrays
from offbeat.data import from_datasets as from_datasets
from offbeat.data import from_hugging_face as from_hugging_face
from offbeat.data import partitions as partitions
from offbeat.data import sources as _sources
from offbeat.environment import Environment as Environment
from offbeat.environment import attacks as attacks
from offbeat.environment import availability as availability
from offbeat.environment import delays as delays
from offbeat.environment import local_work as local_work
from offbeat.errors import ConfigError as ConfigError
from offbeat.errors import DataError as DataError
from offbeat.errors import DivergenceError as DivergenceError
from offbeat.errors import OffbeatError as OffbeatError
from offbeat.errors import RunFolderError as RunFolderError
from offbeat.interactive.comparison import ComparisonTable as ComparisonTable
from offbeat.interactive.comparison import compare as compare
from offbeat.interactive.result import Result as Result
from offbeat.interactive.run import execute as execute
from offbeat.interactive.run import load as load
from offbeat.interactive.run import resume as resume
from offbeat.interactive.run import run as run
from offbeat.interactive.sweep import SweepResult as SweepResult
from offbeat.interactive.sweep import sweep as sweep
from offbeat.interactive.tune import TuneResult as TuneResult
from offbeat.interactive.tune import tune as tune
from offbeat.messages import Job as Job
from offbeat.messages import Update as Update
from offbeat.runs import callbacks as callbacks
from offbeat.runs.budget import Budget as Budget
from offbeat.runs.callbacks import Callback as Callback
from offbeat.runs.custom import lora as lora
from offbeat.runs.experiment import Evaluation as Evaluation
from offbeat.runs.experiment import Experiment as Experiment
from offbeat.scheduling import Buffered as Buffered
from offbeat.scheduling import Continuous as Continuous
from offbeat.scheduling import Periodic as Periodic
from offbeat.scheduling import Rounds as Rounds
from offbeat.server.validation import UpdateValidator as UpdateValidator
from offbeat.tasks import Metric as Metric
from offbeat.tasks import Task as Task
from offbeat.tuning.space import choice as choice
from offbeat.tuning.space import integers as integers
from offbeat.tuning.space import log_uniform as log_uniform
from offbeat.tuning.space import uniform as uniform
from offbeat.version import __version__ as __version__

aggregators = _aggregation
caches = _cache
codecs = _compression
schedulers = _scheduling
client_rules = _rules
augmentations = _augment
datasets = _sources

def __dir__() -> list[str]: ...
