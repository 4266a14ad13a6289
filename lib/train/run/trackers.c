/* trackers.c - starts, watches and ends the children that follow a run. */
#include "train/run/trackers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/installed.h"
#include "base/log.h"
#include "base/mem.h"
#include "io/file.h"
#include "io/process.h"

static const double FIRST_PAUSE_S = 10, MOST_PAUSE_S = 600; /* before a tracker starts again */
static const double TERM_S = 5;                             /* between SIGTERM and SIGKILL */
static const double NOTE_S = 2;                             /* a longer wait at the end is announced */
enum { NICE = 10, USAGE_STATUS = 2 };

/* A tracker of one run. */
struct tracker {
	char *const *command; /* words, of the trackers */
	char *run, *log;
	struct vfm_process process;
	double started, pause, again; /* again: when to start it; 0: not */
	bool ending, stopped;         /* the run has ended; vfm_trackers_close has reported it */
};

struct vfm_trackers {
	struct vfm_guardian guardian;
	char ***commands; /* [n] words of each, ending in NULL */
	int n;
	struct tracker *all; /* [n_all] of all runs; phases follow each other */
	int n_all;
	double limit; /* of vfm_trackers_close, in seconds */
};

static int read_command(char ***words, const char *text, struct vfm_err *err)
{
	*words = vfm_exec_words(text, err);
	if (!*words)
		return vfm_err_context(err, "--track");
	vfm_installed_use("track", *words);
	if (!vfm_is_program((*words)[0]))
		return vfm_fail(err, VFM_EUSAGE, "--track: there is no program '%s'", (*words)[0]);
	return 0;
}

int vfm_trackers_new(struct vfm_trackers **out, const struct vfm_strlist *commands, struct vfm_err *err)
{
	struct vfm_trackers *t;
	int rc = 0;

	*out = NULL;
	if (!commands->n)
		return 0;
	t = vfm_calloc(1, sizeof(*t));
	t->guardian.fd = -1;
	t->commands = vfm_calloc((size_t)commands->n, sizeof(*t->commands));
	for (; t->n < commands->n && rc == 0; t->n++)
		rc = read_command(&t->commands[t->n], commands->v[t->n], err);
	if (rc == 0)
		rc = vfm_guardian_start(&t->guardian, NULL, err);
	if (rc < 0)
		vfm_trackers_close(t, NULL);
	else
		*out = t;
	return rc;
}

/* ---- starting ---- */

static const char *tracker_name(const struct tracker *k)
{
	return vfm_exec_name(k->command);
}

/* Returns the words of the command and the run; the strings belong to k. */
static char **make_tracker_argv(const struct tracker *k)
{
	size_t n = 0;
	char **argv;

	while (k->command[n])
		n++;
	argv = vfm_calloc(n + 2, sizeof(*argv));
	memcpy(argv, k->command, n * sizeof(*argv));
	argv[n] = k->run;
	return argv;
}

static int start_tracker(const struct vfm_trackers *t, struct tracker *k, struct vfm_err *err)
{
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	int log = open(k->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666), rc;
	char **argv = make_tracker_argv(k);

	k->again = 0;
	if (null < 0 || log < 0) {
		rc = vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", k->log);
	} else {
		rc = vfm_process_start_on(&k->process, argv, environ, (int[3]){null, log, log}, err);
		if (rc == 0) {
			setpriority(PRIO_PGRP, (id_t)k->process.pid, NICE);
			vfm_guardian_add(&t->guardian, k->process.pid);
		}
	}
	if (null >= 0)
		close(null);
	if (log >= 0)
		close(log);
	free(argv);
	k->started = vfm_now();
	return rc;
}

int vfm_trackers_start(struct vfm_trackers *t, const char *run, struct vfm_err *err)
{
	char *folder;
	int rc;

	if (!t)
		return 0;
	folder = vfm_strfmt("%s/track", run);
	rc = vfm_mkdir_p(folder, err);
	t->all = vfm_realloc(t->all, (size_t)(t->n_all + t->n), sizeof(*t->all));
	for (int i = 0; i < t->n && rc == 0; i++) {
		struct tracker *k = &t->all[t->n_all++];

		*k = (struct tracker){.command = t->commands[i],
			.run = vfm_strdup(run),
			.log = vfm_strfmt("%s/%s.log", folder, vfm_exec_name(t->commands[i])),
			.process = VFM_PROCESS_NONE,
			.pause = FIRST_PAUSE_S};
		rc = start_tracker(t, k, err);
	}
	free(folder);
	return rc;
}

/* ---- watching ---- */

/* Reaps a tracker that has ended. */
static void report_tracker(struct tracker *k, int status)
{
	char how[64];

	if (status == 0 || k->stopped)
		return;
	vfm_process_describe(status, how, sizeof(how));
	if (WIFEXITED(status) && WEXITSTATUS(status) == USAGE_STATUS) {
		vfm_warn("the tracker %s %s, which another start would not change: see %s; the run goes on without it",
			tracker_name(k), how, k->log);
		return;
	}
	if (k->ending) {
		vfm_warn("the tracker %s %s (%s); it continues when it is started again", tracker_name(k), how, k->log);
		return;
	}
	if (vfm_now() - k->started > MOST_PAUSE_S)
		k->pause = FIRST_PAUSE_S;
	k->again = vfm_now() + k->pause;
	vfm_warn("the tracker %s %s (%s); it starts again in %.0f s", tracker_name(k), how, k->log, k->pause);
	k->pause = k->pause * 2 < MOST_PAUSE_S ? k->pause * 2 : MOST_PAUSE_S;
}

static void poll_tracker(const struct vfm_trackers *t, struct tracker *k)
{
	struct vfm_err err = {0};
	int status;

	if (k->process.pid && vfm_process_has_ended(&k->process, &status)) {
		vfm_guardian_remove(&t->guardian, k->process.pid);
		vfm_process_kill(&k->process); /* the rest of its group */
		report_tracker(k, status);
	}
	if (k->again && vfm_now() >= k->again && start_tracker(t, k, &err) < 0)
		vfm_warn("the tracker %s does not start again: %s", tracker_name(k), err.msg);
}

void vfm_trackers_poll(struct vfm_trackers *t)
{
	for (int i = 0; t && i < t->n_all; i++)
		poll_tracker(t, &t->all[i]);
}

/* ---- the end ---- */

void vfm_trackers_end(struct vfm_trackers *t, int rc, int ranks)
{
	if (!t)
		return;
	vfm_trackers_poll(t);
	for (int i = 0; i < t->n_all; i++) {
		struct tracker *k = &t->all[i];

		k->again = k->again ? vfm_now() : 0; /* at once, and the last time */
		k->ending = true;
	}
	/* With several ranks, the launcher kills this one soon after a failure. */
	t->limit = rc == 0 ? 60 : rc == VFM_ESIGNAL ? 15 : ranks > 1 ? 2.5 : 10;
}

static struct tracker *find_living(const struct vfm_trackers *t)
{
	for (int i = 0; i < t->n_all; i++)
		if (t->all[i].process.pid)
			return &t->all[i];
	return NULL;
}

/* Waits until all trackers have ended, for at most `limit` seconds or until a signal. */
static void wait_for_trackers(struct vfm_trackers *t, double limit, bool announce, const volatile sig_atomic_t *stop)
{
	const sig_atomic_t before = stop ? *stop : 0;
	double begin = vfm_now();
	struct tracker *k;

	for (vfm_trackers_poll(t); (k = find_living(t)) != NULL; vfm_trackers_poll(t)) {
		double waited = vfm_now() - begin;

		if (waited > limit || (stop && *stop != before))
			return;
		if (announce && waited > NOTE_S) {
			vfm_info("waiting up to %.0f s for the tracker %s to send the end of the run", limit,
				tracker_name(k));
			announce = false;
		}
		nanosleep(&(struct timespec){0, 20000000}, NULL);
	}
}

void vfm_trackers_close(struct vfm_trackers *t, const volatile sig_atomic_t *stop)
{
	if (!t)
		return;
	wait_for_trackers(t, t->limit, true, stop);
	for (int i = 0; i < t->n_all; i++)
		if (t->all[i].process.pid) {
			vfm_warn("the tracker %s is stopped before it has sent all of '%s'; it continues when it is "
				 "started again",
				tracker_name(&t->all[i]), t->all[i].run);
			t->all[i].stopped = true;
			kill(t->all[i].process.pid, SIGTERM);
		}
	wait_for_trackers(t, TERM_S < t->limit ? TERM_S : t->limit / 2, false, stop);
	vfm_guardian_end(&t->guardian);
	for (int i = 0; i < t->n_all; i++) {
		vfm_process_kill(&t->all[i].process);
		free(t->all[i].run);
		free(t->all[i].log);
	}
	for (int i = 0; i < t->n; i++)
		vfm_exec_words_free(t->commands[i]);
	free(t->commands);
	free(t->all);
	free(t);
}
