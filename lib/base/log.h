/* log.h - talk on stderr: "program: message", of several ranks "program: rank 3: message".
 *
 * stdout is never touched here.  All functions are thread-safe; a line is written
 * with one write(2).  Control characters, which file names may hold, are printed as '?'.
 */
#ifndef VFM_BASE_LOG_H
#define VFM_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

void vfm_log_init(const char *program); /* keeps the pointer; argv[0] is cut to its last part */
const char *vfm_log_program(void);
void vfm_log_set_rank(int rank);    /* < 0: no rank in front (the default) */
void vfm_log_set_quiet(bool quiet); /* -q: vfm_info and progress are silent */
bool vfm_log_quiet(void);

void vfm_info(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* silent with -q */
void vfm_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* "warning: …" */
void vfm_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Progress: a bar rewritten in place when stderr is a terminal, else a line every
 * 10 seconds; nothing with -q.  total 0 = unknown.  step may be called from any thread. */
struct vfm_progress {
	const char *what; /* "clips" */
	int64_t total, done;
	double t_start, t_shown;
	bool tty, shown;
};
void vfm_progress_start(struct vfm_progress *p, const char *what, int64_t total);
void vfm_progress_step(struct vfm_progress *p, int64_t n);
void vfm_progress_end(struct vfm_progress *p);

#endif
