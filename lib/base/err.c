/* err.c - formats error messages and prepends context to them; cuts long ones. */
#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A message that did not fit ends with "..." after a whole UTF-8 character. */
static void mark_cut(char *msg)
{
	size_t n = VFM_ERR_MAX - 4;

	while (n > 0 && ((unsigned char)msg[n] & 0xC0) == 0x80)
		n--;
	memcpy(msg + n, "...", 4);
}

static void write_message(struct vfm_err *err, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
static void write_message(struct vfm_err *err, const char *fmt, va_list ap)
{
	int n = vsnprintf(err->msg, sizeof(err->msg), fmt, ap);

	if (n < 0)
		snprintf(err->msg, sizeof(err->msg), "(unprintable message)");
	else if ((size_t)n >= sizeof(err->msg))
		mark_cut(err->msg);
}

int(vfm_fail)(struct vfm_err *err, int code, const char *fmt, ...)
{
	va_list ap;

	if (err) {
		err->code = code;
		va_start(ap, fmt);
		write_message(err, fmt, ap);
		va_end(ap);
	}
	return code;
}

int vfm_errno_code(int errnum, int otherwise)
{
	switch (errnum) {
	case EMFILE:
	case ENFILE:
	case ENOMEM:
	case ENOBUFS:
	case EAGAIN:
	case ENOSPC:
	case EDQUOT:
	case EROFS:
	case EIO:
	case ESTALE:
	case ENOTCONN: /* a FUSE mount whose daemon has ended */
	case ETIMEDOUT:
	case ENOLCK:
		return VFM_EENV;
	default:
		return otherwise;
	}
}

int(vfm_fail_errno)(struct vfm_err *err, int code, const char *fmt, ...)
{
	int saved = errno;
	const char *why;
	size_t len, room;
	va_list ap;

	code = vfm_errno_code(saved, code);
	if (!err)
		return code;
	err->code = code;
	va_start(ap, fmt);
	write_message(err, fmt, ap);
	va_end(ap);
	/* Cuts a long file name to keep the reason. */
	why = strerror(saved);
	room = sizeof(err->msg) - strlen(why) - 3;
	len = strlen(err->msg);
	if (len > room) {
		len = room - 3;
		while (len > 0 && ((unsigned char)err->msg[len] & 0xC0) == 0x80)
			len--;
		memcpy(err->msg + len, "...", 3);
		len += 3;
	}
	snprintf(err->msg + len, sizeof(err->msg) - len, ": %s", why);
	errno = saved;
	return code;
}

int vfm_err_context(struct vfm_err *err, const char *fmt, ...)
{
	char was[VFM_ERR_MAX];
	size_t len;
	va_list ap;

	if (!err)
		return VFM_EUSAGE;
	memcpy(was, err->msg, sizeof(was));
	va_start(ap, fmt);
	write_message(err, fmt, ap);
	va_end(ap);
	len = strlen(err->msg);
	if ((size_t)snprintf(err->msg + len, sizeof(err->msg) - len, ": %s", was) >= sizeof(err->msg) - len)
		mark_cut(err->msg);
	return err->code;
}
