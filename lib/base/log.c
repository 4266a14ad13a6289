/* log.c - composes each line and writes it to stderr at once; draws the progress line. */
#include "base/log.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"

static const char *program = "vfm";
static int rank = -1;
static bool quiet;
static _Thread_local bool silent;
static bool bar_on_screen; /* a line must erase the progress bar first */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void vfm_log_init(const char *name)
{
	const char *slash = name ? strrchr(name, '/') : NULL;

	if (name && *name)
		program = slash ? slash + 1 : name;
}

const char *vfm_log_program(void)
{
	return program;
}

void vfm_log_set_rank(int r)
{
	rank = r;
}

void vfm_log_set_quiet(bool q)
{
	quiet = q;
}

bool vfm_log_quiet(void)
{
	return quiet || silent;
}

void vfm_log_set_thread_silent(bool s)
{
	silent = s;
}

bool vfm_log_thread_silent(void)
{
	return silent;
}

static void write_stderr(const char *s, size_t n)
{
	while (n > 0) {
		ssize_t w = write(STDERR_FILENO, s, n);

		if (w < 0 && errno == EINTR)
			continue;
		if (w <= 0)
			return; /* no way to report it */
		s += w;
		n -= (size_t)w;
	}
}

/* A file name may hold newlines and escape sequences; they must not forge lines or move the cursor. */
static void mask_control_chars(char *s)
{
	for (; *s; s++)
		if ((unsigned char)*s < 0x20 || *s == 0x7f)
			*s = *s == '\t' ? ' ' : '?';
}

static void write_line(const char *kind, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
static void write_line(const char *kind, const char *fmt, va_list ap)
{
	char tag[32] = "", small[512], *msg = NULL, *line = NULL;
	int n;

	if (silent)
		return;
	if (vasprintf(&msg, fmt, ap) < 0)
		msg = NULL;
	if (msg)
		mask_control_chars(msg);
	if (rank >= 0)
		snprintf(tag, sizeof(tag), "rank %d: ", rank);
	pthread_mutex_lock(&lock);
	n = asprintf(&line, "%s%s: %s%s%s\n", bar_on_screen ? "\r\033[K" : "", program, tag, kind, msg ? msg : fmt);
	if (n >= 0) {
		write_stderr(line, (size_t)n);
	} else {
		n = snprintf(small, sizeof(small), "%s: %s%s(out of memory)\n", program, tag, kind);
		write_stderr(small, (size_t)n < sizeof(small) ? (size_t)n : sizeof(small) - 1);
	}
	bar_on_screen = false;
	pthread_mutex_unlock(&lock);
	free(line);
	free(msg);
}

void vfm_info(const char *fmt, ...)
{
	va_list ap;

	if (quiet)
		return;
	va_start(ap, fmt);
	write_line("", fmt, ap);
	va_end(ap);
}

void vfm_warn(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	write_line("warning: ", fmt, ap);
	va_end(ap);
}

void vfm_error(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	write_line("", fmt, ap);
	va_end(ap);
}

/* Appends s to the line of *n bytes, as far as there is room. */
static void append_text(char *line, size_t size, size_t *n, const char *s)
{
	while (*s && *n < size)
		line[(*n)++] = *s++;
}

void vfm_log_from_signal(const char *message)
{
	char line[PIPE_BUF], digits[16], *p = digits + sizeof(digits) - 1;
	size_t n = 0;
	int r = rank;

	*p = 0;
	append_text(line, sizeof(line) - 1, &n, program);
	if (r >= 0) {
		do
			*--p = (char)('0' + r % 10);
		while ((r /= 10) > 0);
		append_text(line, sizeof(line) - 1, &n, ": rank ");
		append_text(line, sizeof(line) - 1, &n, p);
	}
	append_text(line, sizeof(line) - 1, &n, ": ");
	append_text(line, sizeof(line) - 1, &n, message);
	line[n++] = '\n';
	write_stderr(line, n);
}

/* ---- progress ---------------------------------------------------------------- */

static void format_duration(char *s, size_t size, double sec)
{
	long t = sec > 0 && sec < 1e8 ? (long)(sec + 0.5) : 0;

	if (t >= 3600)
		snprintf(s, size, "%ld:%02ld:%02ld", t / 3600, t / 60 % 60, t % 60);
	else
		snprintf(s, size, "%ld:%02ld", t / 60, t % 60);
}

static int terminal_columns(void)
{
	struct winsize w;

	return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 20 ? w.ws_col : 80;
}

/* "12.3/s", or "4.5 s each" if one takes longer than a second. */
static void format_rate(char *s, size_t size, double rate)
{
	if (rate > 0 && rate < 1)
		snprintf(s, size, "%.1f s each", 1 / rate);
	else
		snprintf(s, size, "%.1f/s", rate);
}

/* "clips 120/400 30% [=====>      ] 12.3/s, 0:23 left" into s. */
static void render_progress(const struct vfm_progress *p, double now, bool bar, char *s, size_t size)
{
	double spent = now - p->t_start, rate = spent > 0 ? (double)p->done / spent : 0;
	char left[32] = "", gauge[64] = "", speed[32];

	format_rate(speed, sizeof(speed), rate);
	if (p->total <= 0) {
		format_duration(left, sizeof(left), spent);
		snprintf(s, size, "%s %lld, %s, %s", p->what, (long long)p->done, speed, left);
		return;
	}
	if (bar) {
		int width = terminal_columns() - 66 - (int)strlen(p->note), fill;

		width = width < 0 ? 0 : width > 40 ? 40 : width;
		fill = (int)((double)width * (double)p->done / (double)p->total);
		fill = fill < 0 ? 0 : fill > width ? width : fill;
		if (width > 4)
			snprintf(gauge, sizeof(gauge), " [%.*s%*s]", fill,
				"========================================", width - fill, "");
	}
	format_duration(left, sizeof(left), rate > 0 ? (double)(p->total - p->done) / rate : 0);
	snprintf(s, size, "%s %lld/%lld %3.0f%%%s %s, %s%s%s left", p->what, (long long)p->done, (long long)p->total,
		100.0 * (double)p->done / (double)p->total, gauge, speed, p->note, *p->note ? ", " : "", left);
}

static void show_progress(struct vfm_progress *p, double now)
{
	char text[256], line[512];
	int n;

	render_progress(p, now, p->tty, text, sizeof(text));
	if (!p->tty) {
		vfm_info("%s", text);
		return;
	}
	n = snprintf(
		line, sizeof(line), "\r\033[K%s: %.*s", program, terminal_columns() - (int)strlen(program) - 3, text);
	pthread_mutex_lock(&lock);
	write_stderr(line, (size_t)n < sizeof(line) ? (size_t)n : sizeof(line) - 1);
	bar_on_screen = true;
	pthread_mutex_unlock(&lock);
}

void vfm_progress_start(struct vfm_progress *p, const char *what, int64_t total)
{
	*p = (struct vfm_progress){.what = what, .total = total, .t_start = vfm_now(), .tty = isatty(STDERR_FILENO)};
	p->t_shown = p->t_start;
}

void vfm_progress_step(struct vfm_progress *p, int64_t n)
{
	static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
	bool due = false;
	double now;

	__atomic_add_fetch(&p->done, n, __ATOMIC_RELAXED);
	if (quiet)
		return;
	now = vfm_now();
	pthread_mutex_lock(&turn);
	if (now - p->t_shown >= (p->tty ? 0.1 : 10.0)) {
		p->t_shown = now;
		p->shown = due = true;
	}
	pthread_mutex_unlock(&turn);
	if (due)
		show_progress(p, now);
}

void vfm_progress_end(struct vfm_progress *p)
{
	if (!quiet && p->shown && p->tty) {
		show_progress(p, vfm_now());
		pthread_mutex_lock(&lock);
		write_stderr("\n", 1);
		bar_on_screen = false;
		pthread_mutex_unlock(&lock);
	}
	p->shown = false;
}

void vfm_named_add(struct vfm_named *c, const char *name)
{
	enum { SHOWN = 4, BYTES = 100 };
	size_t at = strlen(c->names), len = strlen(name), cut = len;

	if (cut > BYTES)
		for (cut = BYTES; cut > 0 && ((unsigned char)name[cut] & 0xc0) == 0x80;)
			cut--;
	if (c->n++ < SHOWN)
		snprintf(c->names + at, sizeof(c->names) - at, "%s'%.*s%s'", at ? ", " : "", (int)cut, name,
			cut < len ? "..." : "");
	else if (c->n == SHOWN + 1)
		snprintf(c->names + at, sizeof(c->names) - at, ", ...");
}
