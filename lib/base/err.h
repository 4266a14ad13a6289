/* err.h - errors as values.
 *
 * A function that can fail takes a `struct vfm_err *` as its last argument.  It returns 0 or a count on success, and a
 * negative code on failure.  Before it fails, it writes one sentence into the struct: lower case, no full stop, with
 * the file, key or record and the reason.  Only a failed *small* allocation ends the process (mem.h).
 *
 * A code is the negative exit status of the command, except VFM_EPIPE: its status is 0.  A message that is too long is
 * cut and ends with "...".
 */
#ifndef VFM_BASE_ERR_H
#define VFM_BASE_ERR_H

enum {
	VFM_EINPUT = -1,   /* this record or file is bad; others may be good */
	VFM_EUSAGE = -2,   /* bad options, config, plan or checkpoint; nothing was done */
	VFM_EENV = -3,     /* the environment failed: no space, no device, a peer died */
	VFM_EPIPE = -32,   /* the reader of stdout closed it: the command ends silently with status 0 */
	VFM_ESIGNAL = -75, /* a signal stopped the command early; everything is saved */
};

#define VFM_ERR_MAX 4096

/* Plain data: it may be copied and needs no release.  `= {0}` means "no error". */
struct vfm_err {
	int code;
	char msg[VFM_ERR_MAX];
};

/* Overwrites *err unless err is NULL.  Returns `code`:
 * `return vfm_fail(err, VFM_EENV, "cannot open '%s': %s", path, strerror(errno));` */
int vfm_fail(struct vfm_err *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Returns VFM_EENV if errnum is a failure of the machine: no descriptors, memory or space, an I/O error, a file system
 * that is gone.  Returns `otherwise` if the file is at fault (absent, not permitted).  Another file would fail
 * likewise, so that a record or a checkpoint is not to blame. */
int vfm_errno_code(int errnum, int otherwise);

/* As vfm_fail, with ": " and strerror(errno) appended.  The code is vfm_errno_code(errno, code). */
int vfm_fail_errno(struct vfm_err *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Shows compilers and analysers which code is returned, and so which paths exist. */
static inline int vfm_code_of_(int rc, int code)
{
	(void)rc;
	return code;
}
#define vfm_fail(err, code, ...) vfm_code_of_(vfm_fail(err, code, __VA_ARGS__), code)

/* Shows them that the code is negative. */
static inline int vfm_negative_(int rc)
{
	if (rc >= 0)
		__builtin_unreachable();
	return rc;
}
#define vfm_fail_errno(err, code, ...) vfm_negative_(vfm_fail_errno(err, code, __VA_ARGS__))

/* Prepends "context: " to the message of *err.  Returns err->code. */
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
