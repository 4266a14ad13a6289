/* pipeline_run.c - forks the stages, shows and watches them, and sets aside outputs of changed stages. */
#include "curate/pipeline/pipeline_run.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "curate/pipeline/pipeline_view.h"
#include "data/record/share.h"
#include "data/record/stage_link.h"
#include "io/file.h"
#include "io/process.h"

#define COLUMNS    100 /* without a terminal */
#define PAGE_S     2.0
#define TERMINAL_S 0.5
#define SAMPLE_S   1.0
#define SMOOTH_S   20.0 /* of the rates that are shown */
#define GRACE_S    10.0 /* from a stop to SIGKILL */

struct child {
	char *name, *label, *out, *before, *log; /* label: "05-filter", as its files */
	pid_t pid;                               /* 0: none */
	bool failed;
	char *why;                            /* owned */
	struct vfm_stage_counts start;        /* when this process began */
	int64_t at_start, last_in, log_start; /* log_start: bytes of the log before this run */
	double t_idle;                        /* until when it had no record */
	double rate;
};

struct pipeline_run {
	const struct vfm_curation *p;
	struct vfm_curation_run_opts o;
	char *dir, *html, *share; /* share "I/N", NULL: of one */
	int lock;
	struct vfm_progress_file *progress;
	struct child child[VFM_PROGRESS_STAGES];
	pid_t counter;    /* counts the inputs of the first stage */
	int first_failed; /* stage; -1: none */
	int code;         /* of it */
	double t_start, t_sampled, t_shown, t_page, t_stop;
	int table_lines;                          /* on the terminal */
	int table_width[VFM_PROGRESS_STAGES + 2]; /* [table_lines] characters */
	bool on_terminal, page_warned;
};

static volatile sig_atomic_t signals, signal_number;

static void note_signal(int number)
{
	signals++;
	signal_number = number;
}

/* ---- the folder ---- */

/* Refuses a finished first stage other inputs, which it would not read. */
static int check_inputs_of_run(struct pipeline_run *r, struct vfm_err *err)
{
	struct vfm_progress_file *f = r->progress;
	struct vfm_sha256 *h = vfm_sha256_new();
	char hex[VFM_SHA256_HEX];

	for (int i = 0; i < r->p->n_inputs; i++)
		vfm_sha256_add(h, r->p->inputs[i], strlen(r->p->inputs[i]) + 1);
	vfm_sha256_end(h, hex);
	if (atomic_load(&f->stage[0].finished) && strcmp(f->inputs, hex) != 0)
		return vfm_fail(err, VFM_EUSAGE,
			"%s: the inputs differ from those of the run in '%s', which has read all of them: use another "
			"folder, or --update, which works on what is new",
			r->o.config, r->dir);
	memcpy(f->inputs, hex, sizeof(hex));
	return 0;
}

/* Writes the pipeline to the folder, from which the run can be continued. */
static int save_pipeline(const struct pipeline_run *r, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/pipeline.json", r->dir);
	struct vfm_buf b = {0};
	int rc;

	vfm_curation_text(&b, r->p);
	rc = vfm_write_file(path, b.data, b.len, err);
	vfm_buf_release(&b);
	free(path);
	return rc;
}

/* Shows the stages of the default pipeline. */
static void show_pipeline(const struct pipeline_run *r)
{
	vfm_info("the default pipeline, saved as %s/pipeline.json:", r->dir);
	for (int i = 0; i < r->p->n; i++) {
		const struct vfm_curation_stage *s = &r->p->stage[i];
		struct vfm_buf b = {0};

		for (int k = 1; k < s->argc; k++)
			vfm_buf_addf(&b, " %s", s->argv[k]);
		vfm_info("  %-6s %s", s->verb->name, b.len ? b.data + 1 : s->verb->summary);
		vfm_buf_release(&b);
	}
}

static int lock_run(struct pipeline_run *r, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/lock", r->dir);
	int rc = 0;

	r->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (r->lock < 0)
		rc = vfm_fail_errno(err, VFM_EENV, "cannot open '%s'", path);
	else if (!vfm_lock(r->lock, &signals))
		rc = vfm_fail(err, VFM_EUSAGE, "'%s': another run works in this folder", r->dir);
	free(path);
	return rc;
}

static int open_folder(struct pipeline_run *r, struct vfm_err *err)
{
	int64_t share, n_shares;
	struct stat log;
	char *path;
	int rc;

	TRY(vfm_share_parse(r->o.share, &share, &n_shares, err));
	r->dir = n_shares == 1 ? vfm_strdup(r->o.dir) : vfm_strfmt("%s/part-%05lld", r->o.dir, (long long)share);
	r->share = n_shares == 1 ? NULL : vfm_strfmt("%lld/%lld", (long long)share, (long long)n_shares);
	if (r->o.html && vfm_share_file(&r->html, r->o.html, share, err) < 0)
		return vfm_err_context(err, "--html");
	TRY(vfm_mkdir_p(r->dir, err));
	TRY(lock_run(r, err));
	path = vfm_strfmt("%s/progress", r->dir);
	rc = vfm_progress_file_open(&r->progress, path, err);
	free(path);
	for (int i = 0; i < r->p->n; i++) {
		struct child *c = &r->child[i];

		c->name = vfm_strdup(r->p->stage[i].verb->name);
		c->label = vfm_strfmt("%02d-%s", i, c->name);
		c->out = vfm_strfmt("%s/%s.jsonl", r->dir, c->label);
		c->before = vfm_strfmt("%s/%s.before.jsonl", r->dir, c->label);
		c->log = vfm_strfmt("%s/%s.log", r->dir, c->label);
		c->log_start = stat(c->log, &log) == 0 ? log.st_size : 0;
	}
	return rc;
}

/* The share belongs to the identity: the records of another one are others. */
static void stage_identity(const struct pipeline_run *r, int i, char hex[VFM_SHA256_HEX])
{
	char *text = vfm_strfmt("%s %s", r->p->stage[i].identity, r->share ? r->share : "0/1");

	vfm_sha256_of(text, strlen(text), hex);
	free(text);
}

/* Returns whether the folder has results of a stage. */
static bool has_begun(const struct pipeline_run *r, int i)
{
	const struct vfm_progress_stage *s = &r->progress->stage[i];
	struct vfm_stage_progress c;

	vfm_progress_stage_read(s, &c);
	return c.lines > 0 || atomic_load(&s->finished) || (r->p->stage[i].has_resume && atomic_load(&s->started));
}

/* Returns the first stage that began with other options, or -1. */
static int find_changed(const struct pipeline_run *r)
{
	char hex[VFM_SHA256_HEX];

	for (int i = 0; i < r->p->n; i++) {
		stage_identity(r, i, hex);
		if (strcmp(hex, r->progress->stage[i].identity) != 0 && has_begun(r, i))
			return i;
	}
	return -1;
}

/* Renames the records of a stage to those of the run before; the stage copies from them. */
static int set_aside(struct pipeline_run *r, int i, struct vfm_err *err)
{
	struct vfm_progress_stage *s = &r->progress->stage[i];

	if (rename(r->child[i].out, r->child[i].before) != 0 && errno != ENOENT)
		return vfm_fail_errno(err, VFM_EENV, "cannot rename '%s'", r->child[i].out);
	vfm_progress_stage_reset(s);
	stage_identity(r, i, s->identity);
	return 0;
}

/* Sets aside the records of all stages from `first` on.  If this ends early, the next run does it again: it must not
 * take records of the run before in a stage after one that began anew. */
static int set_aside_from(struct pipeline_run *r, int first, struct vfm_err *err)
{
	atomic_store(&r->progress->update, (int8_t)(first + 1));
	for (int i = first; i < r->p->n; i++)
		TRY(set_aside(r, i, err));
	for (int i = r->p->n; i < VFM_PROGRESS_STAGES;
		i++) /* which this pipeline lacks, and a later one may have again */
		vfm_progress_stage_reset(&r->progress->stage[i]);
	atomic_store(&r->progress->update, 0);
	return 0;
}

static int prepare_stages(struct pipeline_run *r, struct vfm_err *err)
{
	int changed = find_changed(r), first = atomic_load(&r->progress->update) - 1;

	if (r->o.update && (first < 0 || changed < first))
		first = changed > 0 ? changed : 0;
	else if (changed >= 0 && (first < 0 || changed < first))
		return vfm_fail(err, VFM_EUSAGE,
			"%s: stages[%d] (%s) differs from the stage that began the run in '%s': use another folder, or "
			"--update, which repeats the affected records",
			r->o.config, changed, r->child[changed].name, r->dir);
	if (first >= 0)
		TRY(set_aside_from(r, first, err));
	TRY(check_inputs_of_run(r, err));
	for (int i = 0; i < r->p->n; i++) {
		struct vfm_progress_stage *s = &r->progress->stage[i];

		if (!has_begun(r, i)) {
			vfm_progress_stage_reset(s);
			atomic_store(&s->started, false);
			stage_identity(r, i, s->identity);
		}
		s->message[0] = 0;
		atomic_store(&s->busy, 0);
		atomic_store(&s->worked, 0);
		atomic_store(&s->worked_bytes, 0);
		atomic_store(&s->worked_us, 0);
		atomic_store(&s->read, atomic_load(&s->finished) ? INT64_MAX : 0);
	}
	r->progress->n = r->p->n;
	atomic_store(&r->progress->stop, false);
	atomic_store(&r->progress->total, -1);
	if (sem_init(&r->progress->tokens, 1, (unsigned)r->o.jobs) != 0)
		return vfm_fail_errno(err, VFM_EENV, "cannot make a semaphore");
	return 0;
}

/* ---- a child ---- */

/* A pattern of --done whose percent signs are literal. */
static char *done_option(const char *path)
{
	struct vfm_buf b = {0};

	vfm_buf_adds(&b, "--done=");
	for (; *path; path++)
		vfm_buf_adds(&b, *path == '%' ? "%%" : (char[]){*path, 0});
	return b.data;
}

/* Completes the command line of stage i; the child's process owns it. */
static char **stage_words(const struct pipeline_run *r, int i, int *argc)
{
	const struct vfm_curation_stage *s = &r->p->stage[i];
	char **w = vfm_calloc((size_t)(s->argc + r->p->n_inputs + 8), sizeof(*w));
	int n = s->argc;

	memcpy(w, s->argv, (size_t)n * sizeof(*w));
	if (!s->has_jobs && !s->has_model)
		w[n++] = vfm_strfmt("--jobs=%lld", (long long)r->o.jobs);
	if (s->needs_dir)
		w[n++] = vfm_strfmt("--dir=%s/%s", r->dir, s->verb->name);
	if (!s->reads_all) /* else there is one share: check_whole_set */
		w[n++] = vfm_strfmt("--part=%s", r->share ? r->share : "0/1");
	if (s->has_resume && atomic_load(&r->progress->stage[i].started))
		w[n++] = vfm_strdup("--resume");
	if (!s->has_resume && !s->reads_all && access(r->child[i].before, F_OK) == 0)
		w[n++] = done_option(r->child[i].before);
	if (i == 0) {
		w[n++] = vfm_strdup("--");
		for (int k = 0; k < r->p->n_inputs; k++)
			w[n++] = r->p->inputs[k];
	}
	*argc = n;
	return w;
}

/* In the child: descriptors, signals, and the link to the parent's end. */
static void enter_child(const struct pipeline_run *r, int i, pid_t parent)
{
	int log = open(r->child[i].log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666),
	    null = open("/dev/null", O_RDWR);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(-VFM_EENV);
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	if (i > 0)
		dup2(null, STDIN_FILENO);
	dup2(log < 0 ? null : log, STDOUT_FILENO);
	dup2(log < 0 ? null : log, STDERR_FILENO);
	vfm_log_init(vfm_strfmt("vfm-curate %s", r->child[i].name));
	vfm_log_set_quiet(false); /* the log is a file */
}

static void run_child_stage(struct pipeline_run *r, int i, bool only_counts)
{
	const struct vfm_curation_stage *s = &r->p->stage[i];
	struct vfm_progress_stage *b = &r->progress->stage[i];
	struct vfm_stage_link link = {.progress = r->progress,
		.index = i,
		.in_path = i ? r->child[i - 1].out : NULL,
		.out_path = r->child[i].out,
		.queue = r->o.queue,
		.takes_tokens = !s->has_jobs && !s->has_model,
		.begins_again = s->has_resume,
		.only_counts = only_counts};
	struct vfm_later_stages later = {0};
	struct vfm_err err = {0};
	char **argv;
	int argc, rc;

	for (int k = i + 1; k < r->p->n; k++) {
		argv = stage_words(r, k, &argc);
		vfm_later_stages_add(&later, argc, argv);
	}
	link.later = &later;
	argv = stage_words(r, i, &argc);
	vfm_stage_link_set(&link);
	if (only_counts)
		vfm_log_set_quiet(true);
	rc = s->verb->run(argc, argv, &err);
	if (only_counts)
		_exit(0);
	if (rc == 0 && !link.begun)
		rc = vfm_fail(&err, VFM_EUSAGE, "it cannot be a stage of a run");
	if (rc == 0 || (rc == VFM_EINPUT && !err.msg[0])) {
		atomic_store(&b->failed_records, rc == VFM_EINPUT);
		atomic_store(&b->finished, true);
	} else {
		snprintf(b->message, sizeof(b->message), "%s", err.msg);
		if (rc != VFM_ESIGNAL)
			vfm_error("%s", err.msg);
	}
	fflush(NULL);
	_exit(rc < 0 ? -rc & 0xff : 0);
}

static int fork_stage(struct pipeline_run *r, int i, bool only_counts, pid_t *pid, struct vfm_err *err)
{
	pid_t parent = getpid();

	*pid = fork();
	if (*pid < 0)
		return vfm_fail_errno(err, VFM_EENV, "cannot start a process");
	if (*pid == 0) {
		enter_child(r, i, parent);
		run_child_stage(r, i, only_counts);
	}
	return 0;
}

/* ---- the end of children ---- */

/* Returns the last line of a log, which the caller frees; NULL: none. */
static char *last_line(const char *path)
{
	char text[4096], *start;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	off_t size = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
	off_t at = size > (off_t)sizeof(text) - 1 ? size - ((off_t)sizeof(text) - 1) : 0;
	ssize_t n = fd < 0 ? 0 : pread(fd, text, sizeof(text) - 1, at);

	if (fd >= 0)
		close(fd);
	while (n > 0 && text[n - 1] == '\n')
		n--;
	if (n <= 0)
		return NULL;
	text[n] = 0;
	start = strrchr(text, '\n');
	return vfm_strdup(start ? start + 1 : text);
}

static void note_failure(struct pipeline_run *r, int i, int status)
{
	struct child *c = &r->child[i];
	const char *said = r->progress->stage[i].message;
	char end[64];

	c->failed = true;
	if (WIFEXITED(status)) {
		c->why = said[0] ? vfm_strdup(said) : last_line(c->log);
		snprintf(end, sizeof(end), "exited with status %d", WEXITSTATUS(status));
	} else {
		char name[32], *last = last_line(c->log);

		vfm_wait_status_text(status, name, sizeof(name));
		snprintf(end, sizeof(end), "was killed by %s", name);
		c->why = vfm_strfmt("%s%s%s", end, last ? "; its last message: " : "", last ? last : "");
		free(last);
	}
	if (!c->why)
		c->why = vfm_strdup(end);
	if (r->first_failed < 0) {
		r->first_failed = i;
		r->code = WIFEXITED(status) && WEXITSTATUS(status) <= -VFM_EENV ? -WEXITSTATUS(status) : VFM_EENV;
	}
}

/* Reaps the children that have ended.  Returns how many run. */
static int reap_children(struct pipeline_run *r)
{
	int running = 0, status;

	for (int i = 0; i < r->p->n; i++) {
		struct child *c = &r->child[i];

		if (!c->pid)
			continue;
		if (waitpid(c->pid, &status, WNOHANG) != c->pid) {
			running++;
			continue;
		}
		c->pid = 0;
		if (atomic_load(&r->progress->stage[i].finished))
			unlink(c->before);
		else if (!WIFEXITED(status) || WEXITSTATUS(status) != -VFM_ESIGNAL)
			if (r->t_stop == 0 || WIFEXITED(status)) /* not by our SIGKILL */
				note_failure(r, i, status);
	}
	if (r->counter && waitpid(r->counter, &status, WNOHANG) == r->counter)
		r->counter = 0;
	return running;
}

static void kill_children(struct pipeline_run *r)
{
	for (int i = 0; i < r->p->n; i++)
		if (r->child[i].pid)
			kill(r->child[i].pid, SIGKILL);
}

static void end_counter(struct pipeline_run *r)
{
	if (!r->counter)
		return;
	kill(r->counter, SIGKILL);
	while (waitpid(r->counter, NULL, 0) < 0 && errno == EINTR)
		;
	r->counter = 0;
}

/* ---- display ---- */

static void sample_rates(struct pipeline_run *r, double now)
{
	double dt = now - r->t_sampled, weight;
	struct vfm_stage_progress c;

	if (dt < SAMPLE_S)
		return;
	/* The mean of the whole time at first, then of about SMOOTH_S. */
	weight = fmax(1 - exp(-dt / SMOOTH_S), dt / (now - r->t_start));
	for (int i = 0; i < r->p->n; i++) {
		vfm_progress_stage_read(&r->progress->stage[i], &c);
		r->child[i].rate += weight * ((double)(c.counts.in - r->child[i].last_in) / dt - r->child[i].rate);
		r->child[i].last_in = c.counts.in;
		if (c.counts.in <= r->child[i].at_start)
			r->child[i].t_idle = now;
	}
	r->t_sampled = now;
}

/* Sets what the workers of the first stage have done, in this process and before. */
static void add_worked(const struct pipeline_run *r, struct vfm_view_stage *s)
{
	const struct vfm_progress_stage *b = &r->progress->stage[0];
	const struct vfm_stage_counts *start = &r->child[0].start;

	s->worked = start->in + atomic_load(&b->worked);
	s->worked_bytes = start->in_bytes + atomic_load(&b->worked_bytes);
	s->worked_s = start->work_s + (double)atomic_load(&b->worked_us) / 1e6;
}

static void look_at_run(struct pipeline_run *r, struct vfm_view *v, double now)
{
	*v = (struct vfm_view){.config = r->o.config,
		.dir = r->dir,
		.elapsed_s = now - r->t_start,
		.jobs = r->o.jobs,
		.total = atomic_load(&r->progress->total),
		.total_bytes = atomic_load(&r->progress->total_bytes),
		.n = r->p->n};
	for (int i = r->p->n - 1; i >= 0; i--) { /* from the end: no stage has more than came to it */
		const struct vfm_progress_stage *b = &r->progress->stage[i];
		struct vfm_view_stage *s = &v->stage[i];

		vfm_progress_stage_read(b, &s->c);
		s->name = r->child[i].label;
		s->state = atomic_load(&b->finished)    ? VFM_VIEW_DONE
			: r->child[i].failed            ? VFM_VIEW_FAILED
			: r->child[i].pid && !r->t_stop ? VFM_VIEW_RUNS
							: VFM_VIEW_STOPPED;
		s->at_start = r->child[i].at_start;
		s->is_apart = r->p->stage[i].has_jobs || r->p->stage[i].has_model;
		s->wall_s = now - fmax(r->child[i].t_idle, r->t_start);
		s->rate = r->child[i].rate;
		s->busy = r->child[i].pid ? atomic_load(&b->busy) : 0;
	}
	add_worked(r, &v->stage[0]);
	v->stage[0].waiting = v->total >= 0 ? v->total - v->stage[0].c.counts.in : -1;
	for (int i = 1; i < v->n; i++)
		v->stage[i].waiting = v->stage[i - 1].c.counts.written - v->stage[i].c.counts.in;
}

static void write_page(struct pipeline_run *r, const struct vfm_view *v)
{
	struct vfm_buf b = {0};
	struct vfm_err err;

	vfm_view_page(&b, v);
	if (vfm_write_file(r->html, b.data, b.len, &err) < 0 && !r->page_warned) {
		vfm_warn("%s", err.msg); /* the page is no result: the run continues */
		r->page_warned = true;
	}
	vfm_buf_release(&b);
}

/* Writes the lines of a text to stderr. */
static void write_lines(const struct vfm_buf *b)
{
	for (size_t at = 0; at < b->len;) {
		ssize_t n = write(STDERR_FILENO, b->data + at, b->len - at);

		if (n <= 0)
			break;
		at += (size_t)n;
	}
}

/* The rows that the table takes on a terminal that was resized: it breaks lines that are wider. */
static int count_rows(const struct pipeline_run *r, int columns)
{
	int rows = 0;

	for (int i = 0; i < r->table_lines; i++)
		rows += r->table_width[i] > columns ? (r->table_width[i] + columns - 1) / columns : 1;
	return rows;
}

static void get_terminal_size(int *columns, int *rows)
{
	struct winsize w = {0};
	bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col && w.ws_row;

	*columns = known ? w.ws_col : 80;
	*rows = known ? w.ws_row : 24;
}

/* Draws the table over the last one. */
static void draw_table(struct pipeline_run *r, const struct vfm_view *v)
{
	struct vfm_buf text = {0}, b = {0};
	int columns, rows, n = 0;

	get_terminal_size(&columns, &rows);
	vfm_view_table(&text, v, columns - 1, rows - 1);
	if (r->table_lines)
		vfm_buf_addf(&b, "\033[%dA", count_rows(r, columns));
	vfm_buf_adds(&b, "\r\033[J\033[?7l"); /* no line breaks, if the terminal is narrower by now */
	vfm_buf_add(&b, text.data, text.len);
	vfm_buf_adds(&b, "\033[?7h");
	for (const char *s = text.data, *end; (end = strchr(s, '\n')); s = end + 1)
		r->table_width[n++] = vfm_utf8_width(s, (size_t)(end - s));
	r->table_lines = n;
	write_lines(&b);
	vfm_buf_release(&text);
	vfm_buf_release(&b);
}

/* Shows the lines that are due; `last`: all of them. */
static void show_run(struct pipeline_run *r, bool last, enum vfm_view_state state, const char *message)
{
	double now = vfm_now();
	bool text = !vfm_log_quiet() && now - r->t_shown >= (r->on_terminal ? TERMINAL_S : r->o.every_s);
	bool page = r->html && (last || now - r->t_page >= PAGE_S);
	struct vfm_buf b = {0};
	struct vfm_view v;

	sample_rates(r, now);
	if (last)
		text = r->on_terminal && !vfm_log_quiet();
	if (!text && !page)
		return;
	look_at_run(r, &v, now);
	v.state = state;
	v.message = message;
	if (page) {
		write_page(r, &v);
		r->t_page = now;
	}
	if (text && r->on_terminal) {
		draw_table(r, &v);
	} else if (text) {
		vfm_view_line(&b, &v);
		vfm_info("%s", b.data);
		vfm_buf_release(&b);
	}
	if (text)
		r->t_shown = now;
}

/* ---- the run ---- */

static void request_stop(struct pipeline_run *r)
{
	if (r->t_stop > 0)
		return;
	r->t_stop = vfm_now();
	atomic_store(&r->progress->stop, true);
	if (signals && !vfm_log_quiet())
		vfm_info("stopping: the records in work are finished (a second signal ends the stages at once)");
	r->table_lines = 0;
}

static int fork_stages(struct pipeline_run *r, struct vfm_err *err)
{
	bool from_stdin = r->p->n_inputs == 0;

	for (int i = 0; i < r->p->n_inputs; i++)
		from_stdin |= !strcmp(r->p->inputs[i], "-");
	for (int i = 0; i < r->p->n; i++) {
		struct vfm_stage_progress c;

		vfm_progress_stage_read(&r->progress->stage[i], &c);
		/* one with --resume counts from the beginning */
		r->child[i].at_start = r->child[i].last_in = r->p->stage[i].has_resume ? 0 : c.counts.in;
		r->child[i].start = c.counts;
		if (!atomic_load(&r->progress->stage[i].finished))
			TRY(fork_stage(r, i, false, &r->child[i].pid, err));
	}
	if (r->child[0].pid && !from_stdin)
		TRY(fork_stage(r, 0, true, &r->counter, err));
	return 0;
}

static void watch_children(struct pipeline_run *r)
{
	while (reap_children(r) > 0) {
		if (signals || r->first_failed >= 0)
			request_stop(r);
		if (r->t_stop > 0 && (signals > 1 || vfm_now() - r->t_stop > GRACE_S))
			kill_children(r);
		show_run(r, false, VFM_VIEW_RUNS, NULL);
		nanosleep(&(struct timespec){0, r->t_stop > 0 ? 5000000 : 30000000}, NULL);
	}
	end_counter(r);
}

/* Repeats what a stage said about captions: missing ones are no failure, and the table does not show them. */
static void repeat_caption_lines(const struct child *c)
{
	FILE *log = fopen(c->log, "re");
	size_t cap = 0;
	char *line = NULL;
	ssize_t n;

	if (!log)
		return;
	fseeko(log, c->log_start, SEEK_SET);
	while ((n = getline(&line, &cap, log)) > 0) {
		line[n - (line[n - 1] == '\n')] = 0;
		if (strstr(line, ": captions: "))
			vfm_info("%s: %s", c->label, strchr(line, ':') + 2);
	}
	free(line);
	fclose(log);
}

/* Reports a finished run: its table, if the terminal does not show it already, the reasons of drops, and the result. */
static void report_stages(const struct pipeline_run *r)
{
	struct vfm_view v;
	struct vfm_buf b = {0};
	const struct vfm_stage_counts *last;
	char kept[VFM_DURATION_TEXT], found[VFM_DURATION_TEXT];
	int columns = COLUMNS, rows;

	if (vfm_log_quiet())
		return;
	if (r->on_terminal)
		get_terminal_size(&columns, &rows);
	look_at_run((struct pipeline_run *)(uintptr_t)r, &v, vfm_now());
	v.state = VFM_VIEW_DONE;
	if (!r->on_terminal)
		vfm_view_table(&b, &v, COLUMNS, INT_MAX);
	vfm_view_reasons(&b, &v, columns);
	write_lines(&b);
	vfm_buf_release(&b);
	last = &v.stage[v.n - 1].c.counts;
	for (int i = 0; i < r->p->n; i++)
		repeat_caption_lines(&r->child[i]);
	if (v.stage[0].c.counts.kept_s > 0)
		vfm_buf_addf(&b, ", %s of %s", vfm_duration_text(kept, last->kept_s),
			vfm_duration_text(found, v.stage[0].c.counts.kept_s));
	if (last->failed)
		vfm_info("%lld failed, so the status is 1", (long long)last->failed);
	vfm_info("%lld of %lld records kept%s: %s", (long long)last->out, (long long)last->in, b.len ? b.data : "",
		r->child[r->p->n - 1].out);
	vfm_buf_release(&b);
}

/* How the run ended, as a code and a message. */
static int conclude_run(struct pipeline_run *r, struct vfm_err *err)
{
	bool all = true, failed = false;

	for (int i = 0; i < r->p->n; i++) {
		all &= atomic_load(&r->progress->stage[i].finished);
		failed |= atomic_load(&r->progress->stage[i].failed_records) != 0;
	}
	if (all) {
		err->msg[0] = 0;
		return failed ? VFM_EINPUT : 0;
	}
	if (r->first_failed >= 0)
		return vfm_fail(err, r->code, "stages[%d] (%s): %s (messages in '%s'; the same command continues)",
			r->first_failed, r->child[r->first_failed].name, r->child[r->first_failed].why,
			r->child[r->first_failed].log);
	return vfm_fail(err, VFM_ESIGNAL,
		"stopped by SIG%s; finished records are saved in '%s'; the same command continues",
		sigabbrev_np(signal_number), r->dir);
}

static void release_run(struct pipeline_run *r)
{
	for (int i = 0; i < r->p->n; i++) {
		struct child *c = &r->child[i];

		free(c->name);
		free(c->label);
		free(c->out);
		free(c->before);
		free(c->log);
		free(c->why);
	}
	vfm_progress_file_close(r->progress);
	if (r->lock >= 0)
		close(r->lock);
	free(r->dir);
	free(r->html);
	free(r->share);
}

static int check_whole_set(const struct pipeline_run *r, struct vfm_err *err)
{
	for (int i = 0; r->share && i < r->p->n; i++)
		if (r->p->stage[i].reads_all)
			return vfm_fail(err, VFM_EUSAGE,
				"%s: stages[%d] (%s) compares all records, and a share has only some: run the stages "
				"before it in shares, and then %s on the records of all shares",
				r->o.config, i, r->child[i].name, r->child[i].name);
	return 0;
}

int vfm_curation_run(const struct vfm_curation *p, const struct vfm_curation_run_opts *o, struct vfm_err *err)
{
	struct pipeline_run r = {.p = p, .o = *o, .lock = -1, .first_failed = -1};
	struct sigaction action = {.sa_handler = note_signal};
	int rc;

	signals = 0;
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
	TRY_OUT(open_folder(&r, err));
	TRY_OUT(check_whole_set(&r, err));
	TRY_OUT(prepare_stages(&r, err));
	TRY_OUT(save_pipeline(&r, err));
	if (atomic_load(&r.progress->stage[p->n - 1].finished))
		vfm_info("this run was done before; --update reads the inputs again");
	if (o->is_default)
		show_pipeline(&r);
	r.t_start = r.t_sampled = vfm_now();
	r.on_terminal = isatty(STDERR_FILENO);
	r.t_shown = r.on_terminal ? 0 : r.t_start; /* the table appears at once */
	rc = fork_stages(&r, err);
	if (rc < 0) {
		request_stop(&r);
		watch_children(&r);
		goto out;
	}
	watch_children(&r);
	rc = conclude_run(&r, err);
	show_run(&r, true,
		rc >= VFM_EINPUT            ? VFM_VIEW_DONE
			: rc == VFM_ESIGNAL ? VFM_VIEW_STOPPED
					    : VFM_VIEW_FAILED,
		err->msg[0] ? err->msg : NULL);
	if (rc >= VFM_EINPUT)
		report_stages(&r);
out:
	release_run(&r);
	return rc;
}
