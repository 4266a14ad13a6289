/* fetch.c - downloads by HTTP or by a command, with retries, and checks the file that comes. */
#include "data/dataset/fetch.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "io/file.h"
#include "io/process.h"
#include "media/av/download.h"
#include "media/av/probe.h"

#define MAX_WAIT_S 60.0
#define URL_MAX    8192
#define TAIL       1000 /* bytes of stderr in an error */
#define WORK       ".fetch-"

struct vfm_fetch {
	struct vfm_fetch_opts o;
	/* of a command: */
	char **words;
	int n_words;
	char *work; /* DIR/.fetch-XXXXXX, with a folder for each URL in work */
	int lock;   /* of `work`; -1: none */
	struct vfm_guardian guardian;
	atomic_llong n_started;
};

/* ---- names ---- */

/* Checks that a URL has a scheme, and no byte that would end a line or a word of a request. */
static int check_url(const struct vfm_fetch *f, const char *url, struct vfm_err *err)
{
	size_t n = 0, len = strlen(url);

	while (isalnum((unsigned char)url[n]) || (n && url[n] && strchr("+-.", url[n])))
		n++;
	if (n < 2 || !isalpha((unsigned char)url[0]) || strncmp(url + n, "://", 3) != 0)
		return vfm_fail(err, VFM_EINPUT, "'%.200s' is no URL", url);
	if (len > URL_MAX)
		return vfm_fail(err, VFM_EINPUT, "a URL of %zu bytes, at most %d are allowed", len, URL_MAX);
	for (const char *p = url; *p; p++)
		if ((unsigned char)*p <= ' ' || *p == 0x7f)
			return vfm_fail(err, VFM_EINPUT,
				"the URL has a blank or control character at byte %zu; write %%%02X", (size_t)(p - url),
				(unsigned char)*p);
	if (!f->o.command && !vfm_download_takes(url))
		return vfm_fail(
			err, VFM_EINPUT, "'%s': %.*s is not http or https: --fetch CMD is missing", url, (int)n, url);
	return 0;
}

/* Copies the ending of the URL's path, with its dot, if it is that of a video or image; else "". */
static void copy_ending(char ending[16], const char *url)
{
	const char *path = strstr(url, "://") + 3, *end, *dot = NULL;

	path += strcspn(path, "/?#");
	end = path + strcspn(path, "?#");
	for (const char *p = path; p < end; p++)
		dot = *p == '.' ? p : *p == '/' ? NULL : dot;
	ending[0] = 0;
	if (!dot || end - dot >= 16)
		return;
	for (int i = 0; i < end - dot; i++)
		ending[i] = (char)tolower((unsigned char)dot[i]);
	ending[end - dot] = 0;
	if (!vfm_media_name(ending))
		ending[0] = 0;
}

static char *file_name(const char *url)
{
	char hex[VFM_SHA256_HEX], ending[16];

	vfm_sha256_of(url, strlen(url), hex);
	copy_ending(ending, url);
	return vfm_strfmt("%.32s%s", hex, ending);
}

/* ---- HTTP ---- */

static int download(struct vfm_fetch *f, const char *url, const struct vfm_limit *limit, struct vfm_fetched *to,
	bool *again, struct vfm_err *err)
{
	struct vfm_download_opts o = {limit, f->o.stall_s, f->o.max_bytes, f->o.any_length, f->o.ca_file};
	struct vfm_download_result r;
	struct vfm_atomic a;
	int rc;

	TRY(vfm_atomic_open(&a, to->path, err));
	rc = vfm_download(url, a.f, &o, &r, err);
	*again = rc < 0 && r.may_retry;
	if (rc == 0 && r.bytes == 0 && !f->o.allow_empty)
		rc = vfm_fail(err, VFM_EINPUT, "'%s': the file is empty", url);
	if (rc == 0)
		rc = vfm_atomic_commit(&a, err);
	else
		vfm_atomic_abort(&a);
	to->bytes = r.bytes;
	strcpy(to->sha256, r.sha256);
	return rc;
}

/* ---- a command ---- */

/* Makes one line of printable text of the end of what a command wrote to stderr. */
static const char *tail_text(struct vfm_buf *t)
{
	char *s = t->data;

	while (t->len && isspace((unsigned char)s[t->len - 1]))
		s[--t->len] = 0;
	for (size_t i = 0; i < t->len; i++)
		if ((unsigned char)s[i] < ' ' || (unsigned char)s[i] >= 0x7f)
			s[i] = s[i] == '\n' ? ';' : s[i] == '\t' ? ' ' : '?';
	return t->len ? s : "";
}

/* Reads what a pipe has, and keeps the end of it; closes the pipe at its end. */
static void drain_pipe(int *fd, struct vfm_buf *t)
{
	char buf[4096];
	ssize_t n;

	while (*fd >= 0 && (n = read(*fd, buf, sizeof(buf))) != 0) {
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return;
		if (!t)
			continue;
		vfm_buf_add(t, buf, (size_t)n);
		if (t->len > TAIL) {
			memmove(t->data, t->data + t->len - TAIL, TAIL);
			t->len = TAIL;
			t->data[TAIL] = 0;
		}
	}
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static int64_t file_bytes(const char *path)
{
	struct stat st;

	return lstat(path, &st) == 0 ? (int64_t)st.st_size : 0;
}

/* Waits for the end of the command. */
static int watch_command(const struct vfm_fetch *f, struct vfm_process *p, const char *url, const char *out,
	const struct vfm_limit *limit, struct vfm_buf *t, int *status, struct vfm_err *err)
{
	while (!vfm_process_has_ended(p, status)) {
		struct pollfd fds[3] = {{p->out, POLLIN, 0}, {p->err_fd, POLLIN, 0}, {p->pidfd, POLLIN, 0}};

		poll(fds, 3, 100);
		drain_pipe(&p->out, NULL);
		drain_pipe(&p->err_fd, t);
		TRY(vfm_limit_check(limit, url, err));
		if (f->o.max_bytes && file_bytes(out) > f->o.max_bytes)
			return vfm_fail(
				err, VFM_EINPUT, "'%s' has more than %lld bytes", url, (long long)f->o.max_bytes);
	}
	drain_pipe(&p->err_fd, t);
	return 0;
}

/* Runs the command; `out` is its file.  *again: its failure may pass. */
static int run_command(const struct vfm_fetch *f, const char *url, const char *out, const struct vfm_limit *limit,
	bool *again, struct vfm_err *err)
{
	char **argv = vfm_calloc((size_t)f->n_words + 6, sizeof(*argv));
	struct vfm_buf tail = {0};
	struct vfm_process p;
	char end[64];
	int n = 0, status = 0, rc;

	for (int i = 0; i < f->n_words; i++)
		argv[n++] = f->words[i];
	argv[n++] = (char *)(uintptr_t)url;
	argv[n++] = (char *)(uintptr_t)out;
	rc = vfm_process_start(&p, argv, environ, err);
	free(argv);
	TRY(rc);
	vfm_guardian_add(&f->guardian, p.pid);
	close(p.in);
	p.in = -1;
	rc = watch_command(f, &p, url, out, limit, &tail, &status, err);
	n = p.pid;
	vfm_process_kill(&p); /* and what it left behind in its group */
	vfm_guardian_remove(&f->guardian, n);
	if (rc == 0 && status != 0) {
		vfm_process_describe(status, end, sizeof(end));
		*again = true;
		rc = vfm_fail(err, VFM_EINPUT, "'%s': '%s' %s%s%s", url, f->words[0], end, tail.len ? ": " : "",
			tail_text(&tail));
	}
	vfm_buf_release(&tail);
	return rc;
}

/* Checks the file that the command wrote, and moves it to its place. */
static int take_file(struct vfm_fetch *f, const char *url, const char *out, const struct vfm_limit *limit,
	struct vfm_fetched *to, struct vfm_err *err)
{
	struct stat st;
	int fd, rc = 0;

	if (lstat(out, &st) != 0)
		return vfm_fail(err, VFM_EINPUT, "'%s': '%s' succeeded but wrote no file", url, f->words[0]);
	if (!S_ISREG(st.st_mode) || (st.st_size == 0 && !f->o.allow_empty))
		return vfm_fail(err, VFM_EINPUT, "'%s': '%s' wrote %s", url, f->words[0],
			S_ISREG(st.st_mode) ? "an empty file" : "no regular file");
	if (f->o.max_bytes && st.st_size > f->o.max_bytes)
		return vfm_fail(err, VFM_EINPUT, "'%s' has more than %lld bytes", url, (long long)f->o.max_bytes);
	to->bytes = st.st_size;
	TRY(vfm_sha256_file(out, limit, to->sha256, err));
	fd = open(out, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0 || fsync(fd) != 0 || rename(out, to->path) != 0)
		rc = vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", to->path);
	if (fd >= 0)
		close(fd);
	return rc < 0 ? rc : vfm_fsync_dir(f->o.dir, err);
}

static int fetch_by_command(struct vfm_fetch *f, const char *url, const struct vfm_limit *limit, struct vfm_fetched *to,
	bool *again, struct vfm_err *err)
{
	char *folder = vfm_strfmt("%s/%lld", f->work, (long long)atomic_fetch_add(&f->n_started, 1));
	char *out = vfm_strfmt("%s/%s", folder, strrchr(to->path, '/') + 1);
	int rc;

	if (mkdir(folder, 0777) != 0)
		rc = vfm_fail_errno(err, VFM_EENV, "cannot make '%s'", folder);
	else
		rc = run_command(f, url, out, limit, again, err);
	if (rc == 0)
		rc = take_file(f, url, out, limit, to, err);
	vfm_rm_rf(folder, NULL);
	free(folder);
	free(out);
	return rc;
}

/* ---- a URL ---- */

/* Waits before an attempt.  Differs between URLs, so that many that failed together do not come back together. */
static int wait_to_retry(
	const struct vfm_fetch *f, const char *url, int64_t attempt, const struct vfm_limit *limit, struct vfm_err *err)
{
	double wait = f->o.wait_s, until;
	struct timespec slice = {0, 50000000};

	for (int64_t i = 1; i < attempt && wait < MAX_WAIT_S; i++)
		wait *= 2;
	wait = wait < MAX_WAIT_S ? wait : MAX_WAIT_S;
	until = vfm_now() + wait * (1 + 0.5 * (double)(vfm_fnv64(url, strlen(url)) >> 40) / 0x1p24);
	while (vfm_now() < until) {
		TRY(vfm_limit_check(limit, url, err));
		nanosleep(&slice, NULL);
	}
	return 0;
}

int vfm_fetch_url(struct vfm_fetch *f, const char *url, struct vfm_fetched *to, struct vfm_err *err)
{
	struct vfm_limit limit = vfm_limit_start(f->o.timeout_s);
	struct vfm_err why = {0};
	int64_t tries = 0;
	bool again;
	char *name;
	int rc;

	memset(to, 0, sizeof(*to));
	TRY(check_url(f, url, err));
	name = file_name(url);
	to->path = vfm_strfmt("%s/%s", f->o.dir, name);
	free(name);
	do {
		again = false;
		if (tries && wait_to_retry(f, url, tries, &limit, err) < 0)
			break; /* why: that of the last attempt */
		rc = f->o.command ? fetch_by_command(f, url, &limit, to, &again, &why)
				  : download(f, url, &limit, to, &again, &why);
		tries++;
	} while (rc == VFM_EINPUT && again && tries <= f->o.retries);
	if (rc == 0)
		return 0;
	free(to->path);
	to->path = NULL;
	return tries > 1 ? vfm_fail(err, rc, "%s (tried %lld times)", why.msg, (long long)tries)
			 : vfm_fail(err, rc, "%s", why.msg);
}

/* ---- */

static int check_fetch_opts(const struct vfm_fetch_opts *o, struct vfm_err *err)
{
	if (o->stall_s < 0 || o->stall_s > 1e9 || o->wait_s < 0 || o->wait_s > MAX_WAIT_S)
		return vfm_fail(
			err, VFM_EUSAGE, "--stall, --wait: expected seconds from 0, to wait at most %g", MAX_WAIT_S);
	if (o->retries < 0 || o->retries > 100)
		return vfm_fail(err, VFM_EUSAGE, "--retries: expected 0 to 100, got %lld", (long long)o->retries);
	if (!o->command && o->shell)
		return vfm_fail(err, VFM_EUSAGE, "--fetch-shell: --fetch CMD is missing");
	if (o->command && (o->any_length || o->ca_file))
		return vfm_fail(err, VFM_EUSAGE, "--any-length, --ca-file: not with --fetch");
	return 0;
}

/* The words before the URL. */
static int set_command(struct vfm_fetch *f, struct vfm_err *err)
{
	if (f->o.shell) {
		f->words = vfm_calloc(5, sizeof(*f->words));
		f->words[0] = vfm_strdup("sh");
		f->words[1] = vfm_strdup("-c");
		f->words[2] = vfm_strdup(f->o.command);
		f->words[3] = vfm_strdup("sh");
	} else {
		f->words = vfm_exec_words(f->o.command, err);
		if (!f->words)
			return VFM_EUSAGE;
	}
	while (f->words[f->n_words])
		f->n_words++;
	TRY(vfm_temp_dir_make(f->o.dir, WORK, &f->work, &f->lock, err));
	return vfm_guardian_start(&f->guardian, f->work, err);
}

int vfm_fetch_open(struct vfm_fetch **out, const struct vfm_fetch_opts *o, struct vfm_err *err)
{
	struct vfm_fetch *f;
	int rc;

	*out = NULL;
	TRY(check_fetch_opts(o, err));
	TRY(vfm_mkdir_p(o->dir, err));
	vfm_temp_sweep(o->dir);
	vfm_temp_dir_sweep(o->dir, WORK);
	f = vfm_calloc(1, sizeof(*f));
	f->o = *o;
	f->guardian.fd = f->lock = -1;
	rc = o->command ? set_command(f, err) : 0;
	if (rc < 0) {
		vfm_fetch_close(f);
		return rc;
	}
	*out = f;
	return 0;
}

void vfm_fetch_close(struct vfm_fetch *f)
{
	if (!f)
		return;
	vfm_guardian_end(&f->guardian);
	if (f->work)
		vfm_rm_rf(f->work, NULL);
	if (f->lock >= 0)
		close(f->lock);
	vfm_exec_words_free(f->words);
	free(f->work);
	free(f);
}
