/* err.h - errors as values.
 *
 * A function that can fail takes a `struct vfm_err *` as its last argument and
 * returns 0 (or a count) on success and a negative code on failure, after it has
 * written one sentence for a person into the struct: lower case, no full stop,
 * naming the file, key or record and the reason.  The library never prints an
 * error and never exits; only a failed *small* allocation aborts (mem.h).
 *
 * Codes are the negative of the exit status that a command ends with (but VFM_EPIPE: 0).
 * A message that is too long (file names have any length) is cut and ends with "...".
 */
#ifndef VFM_BASE_ERR_H
#define VFM_BASE_ERR_H

enum {
	VFM_EINPUT = -1,   /* this input (record, file) is bad; others may be good */
	VFM_EUSAGE = -2,   /* bad usage, config, manifest or checkpoint; nothing was done */
	VFM_EENV = -3,     /* the environment failed: no space, no device, a peer died */
	VFM_EPIPE = -32,   /* the reader of stdout went away: ends a command quietly, with status 0 */
	VFM_ESIGNAL = -75, /* stopped early by a signal, with everything saved */
};

#define VFM_ERR_MAX 1024

/* Plain data: may be copied, needs no release.  `= {0}` means "no error". */
struct vfm_err {
	int code;
	char msg[VFM_ERR_MAX];
};

/* Overwrites *err (may be NULL); always returns `code`, so that one can write
 * `return vfm_fail(err, VFM_EENV, "cannot open '%s': %s", path, strerror(errno));` */
int vfm_fail(struct vfm_err *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The same with ": " and strerror(errno) at the end. */
int vfm_fail_errno(struct vfm_err *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* So that compilers and analysers see the code that comes back, and with it which paths there are. */
static inline int vfm_code_of_(int rc, int code)
{
	(void)rc;
	return code;
}
#define vfm_fail(err, code, ...)       vfm_code_of_(vfm_fail(err, code, __VA_ARGS__), code)
#define vfm_fail_errno(err, code, ...) vfm_code_of_(vfm_fail_errno(err, code, __VA_ARGS__), code)

/* Puts "context: " in front of the message that stands there.  Returns err->code. */
int vfm_err_context(struct vfm_err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* TRY returns the code of a failed call; TRY_OUT stores it in `rc` and goes to `out`. */
#define TRY(call)                                                                                                      \
	do {                                                                                                           \
		int try_rc_ = (call);                                                                                  \
		if (try_rc_ < 0)                                                                                       \
			return try_rc_;                                                                                \
	} while (0)
#define TRY_OUT(call)                                                                                                  \
	do {                                                                                                           \
		rc = (call);                                                                                           \
		if (rc < 0)                                                                                            \
			goto out;                                                                                      \
	} while (0)

#endif
