#!/usr/bin/env python3
"""Sends a run of vfm-train to MLflow.  Needs mlflow or mlflow-skinny.

    vfm-train --track 'track_mlflow.py --uri http://mlflow:5000' ... -o RUN
    track_mlflow.py --uri sqlite:////data/mlflow.db RUN

A step's values become metrics, the configuration parameters such as train.lr, samples artifacts."""

import os
import time

import vfm_track

METRICS, PARAMS, TEXT = 1000, 100, 500  # the limits of a request, and of a parameter's value
STATUS = {"done": "FINISHED", "failed": "FAILED"}


class MLflow(vfm_track.Tracker):
    kind = "mlflow"

    def __init__(self, options):
        self.options, self.has = options, {}

    def destination(self):
        return f"{self.options.uri or os.environ.get('MLFLOW_TRACKING_URI', '')} {self.options.experiment}"

    def open(self, run, position):
        from mlflow import MlflowClient

        self.client, self.has = MlflowClient(self.options.uri), {}
        name = run.name if position.attempt == 1 else f"{run.name} ({position.attempt})"
        tag = f"{position.id}-{position.attempt}"
        experiment = self.experiment()
        # Not from the position: a process may have been killed before it saved the new run's id.
        found = self.client.search_runs([experiment], filter_string=f"tags.`vfm.id` = '{tag}'", max_results=1)
        tags = {"vfm.id": tag, "vfm.group": position.id, "vfm.run": run.folder}
        known = found[0] if found else self.client.create_run(experiment, run_name=name, tags=tags)
        self.id = known.info.run_id
        self.client.update_run(self.id, status="RUNNING")
        self.log_config(run.config, known.data.params, position.step)

    def experiment(self):
        found = self.client.get_experiment_by_name(self.options.experiment)
        return found.experiment_id if found else self.client.create_experiment(self.options.experiment)

    def log_config(self, config, logged, step):
        """Parameters never change in MLflow: a value that a resumed run has changed becomes a tag."""
        from mlflow.entities import Param

        new = []
        for key, value in flatten(config):
            value = str(value)[:TEXT]
            if key not in logged:
                new.append(Param(key, value))
            elif logged[key] != value:
                self.client.set_tag(self.id, f"changed.{key}", f"{value} after step {step}")
        for i in range(0, len(new), PARAMS):
            self.client.log_batch(self.id, params=new[i:i + PARAMS])

    def recover(self, step):
        """A batch is not atomic: asks for the newest step of each metric."""
        for key in self.client.get_run(self.id).data.metrics:
            self.has[key] = max(m.step for m in self.client.get_metric_history(self.id, key))
        return step

    def send(self, points):
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(k, float(v), now, p.step) for p in points for k, v in p.values.items()
                   if p.step > self.has.get(k, 0)]
        for i in range(0, len(metrics), METRICS):
            self.client.log_batch(self.id, metrics=metrics[i:i + METRICS])
        for s in (s for p in points for s in p.samples):
            for path in s.files + ([s.records] if s.records else []):
                self.client.log_artifact(self.id, path, f"samples/{os.path.basename(s.folder)}")

    def close(self, end):
        if end is None:
            return
        self.client.set_tag(self.id, "vfm.end", f"{end['status']}: {end.get('message') or ''}".rstrip(": "))
        self.client.set_terminated(self.id, STATUS.get(end["status"], "KILLED"))


def flatten(config, prefix=""):
    """(key, value): {"train": {"lr": 1}} -> ("train.lr", 1)."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def main():
    p = vfm_track.options(__doc__)
    p.add_argument("--uri", help="of the tracking server (default MLFLOW_TRACKING_URI)")
    p.add_argument("--experiment", default=os.environ.get("MLFLOW_EXPERIMENT_NAME", "vfm"),
                   help="(default MLFLOW_EXPERIMENT_NAME, or vfm)")
    a = p.parse_args()
    vfm_track.main(MLflow(a), a)


main()
