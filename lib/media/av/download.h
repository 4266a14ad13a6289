/* download.h - a file over HTTP or HTTPS, through FFmpeg. */
#ifndef VFM_MEDIA_AV_DOWNLOAD_H
#define VFM_MEDIA_AV_DOWNLOAD_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/err.h"
#include "io/hash.h"

struct vfm_download_opts {
	const struct vfm_limit *limit; /* of the caller; NULL: none */
	double stall_s;                /* fails after so long without a byte; 0: no limit */
	int64_t max_bytes;             /* a longer file fails; 0: no limit */
	bool any_length;               /* take a file whose length the server does not name; it may be incomplete */
	const char *ca_file;           /* certificates that are trusted; NULL: those of the system */
};

struct vfm_download_result {
	int64_t bytes;
	char sha256[VFM_SHA256_HEX];
	bool may_retry; /* after a failure: another attempt may succeed (no 404, but a reset connection) */
};

/* Returns whether a URL begins "http://" or "https://". */
bool vfm_download_takes(const char *url);

/* Writes the content of a URL to f.  A server that compresses it by gzip or deflate, though it is asked not to, is
 * understood: bytes, SHA-256 and max_bytes are those of the decompressed file.  Follows redirects, to http and https
 * alone; checks certificates.  The proxy is that of the environment (http_proxy, no_proxy).  VFM_EINPUT: the server's
 * error, a timeout, fewer bytes than the server announced, an end before the last chunk, another content coding, or
 * data that decompress to more than 100 times their length; VFM_EENV: f cannot be written.  Local, thread-safe. */
int vfm_download(const char *url, FILE *f, const struct vfm_download_opts *o, struct vfm_download_result *r,
	struct vfm_err *err);

#endif
