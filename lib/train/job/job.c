/* job.c - starts the ranks, agrees on the worst failure, and ends them. */
#include "train/job/job.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "comm/host/comm_host.h"
#include "device/ops/tensor.h"
#include "io/task.h"

int vfm_job_say_once(int rc, struct vfm_err *err)
{
	struct vfm_task task;

	if (rc < 0 && vfm_task_read(&task, NULL) == 0 && task.number > 0)
		err->msg[0] = '\0';
	return rc;
}

/* Logs the message before it ends the other ranks, because that may end this rank, too. */
static int abort_ranks(struct vfm_job *j, int rc, struct vfm_err *err)
{
	char why[sizeof(err->msg)];

	if (err->msg[0])
		vfm_error("%s", err->msg);
	memcpy(why, err->msg, sizeof(why));
	err->msg[0] = '\0';
	vfm_launch_abort(&j->launch, -rc, why);
	return rc;
}

int vfm_job_start(struct vfm_job *j, int n, const char *recorder_dir, struct vfm_err *err)
{
	struct vfm_host_comm_opts o = {.recorder_dir = recorder_dir};
	int rc;

	*j = (struct vfm_job){.world = vfm_comm_self()};
	rc = vfm_launch_init(&j->launch, n, err);
	if (rc == 1 && *j->launch.why)
		vfm_error("%s", j->launch.why);
	if (rc == VFM_EUSAGE)
		vfm_job_say_once(rc, err);
	if (rc < 0)
		return abort_ranks(j, rc, err);
	if (rc != 0 || j->launch.size == 1)
		return rc;
	vfm_log_set_rank(j->launch.rank);
	if (j->launch.rank > 0)
		vfm_log_set_quiet(true);
	rc = vfm_comm_host_new(&j->launch, &o, &j->world, err);
	return rc < 0 ? abort_ranks(j, rc, err) : 0;
}

/* ---- agreeing ---- */

/* Orders codes by severity: success < exit status 75 (stopped) < input < usage < environment. */
static int severity(int64_t rc)
{
	return rc >= 0 ? 0 : rc == VFM_ESIGNAL ? 1 : rc == VFM_EINPUT ? 2 : rc == VFM_EUSAGE ? 3 : 4;
}

static int spread_worst(struct vfm_comm *c, const int64_t *code, const struct vfm_err *mine, struct vfm_err *err)
{
	const char *msg = code[c->rank] < 0 ? mine->msg : "";
	int worst = 0, rc = 0;
	bool same = true;
	char *all = NULL;
	size_t *off = NULL;

	TRY(vfm_comm_gather_bytes(c, msg, strlen(msg), &all, &off, err));
	for (int r = 0; r < c->size; r++) {
		if (severity(code[r]) > severity(code[worst]))
			worst = r;
		same = same && code[r] == code[0] && off[r + 1] - off[r] == off[1] &&
			!memcmp(all + off[r], all, off[1]);
	}
	rc = (int)code[worst];
	if (same)
		vfm_fail(err, rc, "%.*s", (int)off[1], all);
	else
		vfm_fail(err, rc, "rank %d: %.*s", worst, (int)(off[worst + 1] - off[worst]), all + off[worst]);
	free(all);
	free(off);
	return rc;
}

/* Sets *known to false if the agreement itself failed, so that the ranks may hold different results. */
static int agree(struct vfm_comm *c, int rc, struct vfm_err *err, bool *known)
{
	int64_t mine = rc, *code;
	struct vfm_err why = {0};
	int got = 0;

	*known = true;
	if (c->size == 1)
		return rc;
	if (rc < 0 && err)
		why = *err;
	code = vfm_calloc((size_t)c->size, sizeof(*code));
	got = vfm_all_gather(c, NULL, vfm_t1(&mine, VFM_I64, 1), vfm_t1(code, VFM_I64, c->size), NULL, err);
	*known = got >= 0;
	for (int r = 0; got >= 0 && r < c->size; r++)
		if (code[r] < 0) {
			got = spread_worst(c, code, &why, err);
			break;
		}
	free(code);
	return got;
}

int vfm_agree(struct vfm_comm *c, int rc, struct vfm_err *err)
{
	bool known;

	return agree(c, rc, err, &known);
}

int vfm_job_agree(struct vfm_job *j, int rc, struct vfm_err *err)
{
	bool known;

	rc = agree(j->world, rc, err, &known);
	j->agreed = rc < 0 && known;
	return rc;
}

int vfm_job_broadcast(struct vfm_job *j, char **text, struct vfm_err *err)
{
	int64_t n = j->world->rank == 0 && *text ? (int64_t)strlen(*text) : -1;

	TRY(vfm_broadcast(j->world, NULL, vfm_t1(&n, VFM_I64, 1), 0, err));
	if (n < 0)
		return 0;
	if (j->world->rank != 0) {
		free(*text);
		*text = vfm_calloc(1, (size_t)n + 1);
	}
	return vfm_broadcast(j->world, NULL, vfm_t1(*text, VFM_U8, n), 0, err);
}

/* ---- failing ---- */

int vfm_job_mark(struct vfm_job *j, const char *dir, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/failure.txt", dir);
	int rc;

	free(j->mark);
	j->mark = NULL;
	if (j->launch.rank == 0)
		unlink(path);
	rc = vfm_job_agree(j, 0, err); /* until all know that no old mark is left, each rank reports */
	if (rc < 0)
		free(path);
	else
		j->mark = path;
	return rc;
}

/* Returns whether this rank is the first to create the mark file.  If no rank can create it, all ranks report. */
static bool claim_report(struct vfm_job *j, const struct vfm_err *err)
{
	bool first = true;
	int fd;

	if (!j->mark)
		return true;
	fd = open(j->mark, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd >= 0) {
		dprintf(fd, "job %s, rank %d (%s): %s\n", j->launch.job, j->launch.rank, j->launch.host, err->msg);
		close(fd);
	} else if (errno == EEXIST) {
		first = false;
	}
	return first;
}

int vfm_job_failed(struct vfm_job *j, int rc, struct vfm_err *err)
{
	if (rc >= 0 || j->agreed || j->failed || j->world->size == 1)
		return rc;
	j->failed = true;
	j->first = claim_report(j, err);
	vfm_comm_abort(j->world, err->msg);
	return rc;
}

int vfm_job_end(struct vfm_job *j, int rc, struct vfm_err *err)
{
	if (j->world->size > 1) {
		vfm_job_failed(j, rc, err);
		if (rc < 0 && (j->failed ? !j->first : j->world->rank != 0))
			err->msg[0] = '\0';
		if (!j->failed)
			vfm_log_set_rank(-1); /* the message is common to all ranks */
		if (j->failed && j->first)
			abort_ranks(j, rc, err);
	}
	if (!j->failed) {
		vfm_comm_free(j->world);
		vfm_launch_end(&j->launch);
	}
	free(j->mark);
	j->mark = NULL;
	return rc;
}
