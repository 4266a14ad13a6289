/* log.h - messages on stderr: "program: message", or "program: rank 3: message" with several ranks.  Each function
 * writes a line with one write(2) and prints control characters as '?'.  Thread-safe unless noted.
 */
#ifndef VFM_BASE_LOG_H
#define VFM_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

void vfm_log_init(const char *program); /* the last component of argv[0]; keeps the pointer */
const char *vfm_log_program(void);
void vfm_log_set_rank(int rank);    /* prefixes messages with the rank; < 0 (default): no prefix */
void vfm_log_set_quiet(bool quiet); /* -q: suppresses vfm_info and progress */
bool vfm_log_quiet(void);
void vfm_log_set_thread_silent(bool silent); /* the calling thread logs nothing from now on */
bool vfm_log_thread_silent(void);

void vfm_info(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* suppressed by -q */
void vfm_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* "warning: …" */
void vfm_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Names that a summary counts and lists: "3 files were left out: 'a', 'b', 'c'".  `= {0}` before the first. */
struct vfm_named {
	int64_t n;
	char names[512]; /* the first names, then ", ..." */
};
void vfm_named_add(struct vfm_named *c, const char *name); /* not thread-safe */

/* Writes "program: rank 3: message" from a signal handler.  Takes no lock and allocates nothing. */
void vfm_log_from_signal(const char *message);

/* Progress: a bar on a terminal, otherwise a line every 10 seconds; -q suppresses it.  A total of 0 means unknown.  Any
 * thread may call step. */
struct vfm_progress {
	const char *what; /* "clips" */
	int64_t total, done;
	char note[32]; /* shown after them, as "loss 0.163"; set by the thread that calls step */
	double t_start, t_shown;
	bool tty, shown;
};
void vfm_progress_start(struct vfm_progress *p, const char *what, int64_t total);
void vfm_progress_step(struct vfm_progress *p, int64_t n);
void vfm_progress_end(struct vfm_progress *p);

#endif
