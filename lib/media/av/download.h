/* download.h - downloads a file over HTTP or HTTPS, through FFmpeg. */
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
	double stall_s;                /* fails after this many seconds without a byte; 0: no limit */
	int64_t max_bytes;             /* a longer file fails; 0: no limit */
	/* accept a file whose length the server does not announce, which may be incomplete */
	bool any_length;
	const char *ca_file; /* trusted certificates; NULL: those of the system */
};

struct vfm_download_result {
	int64_t bytes;
	char sha256[VFM_SHA256_HEX];
	bool may_retry; /* after a failure: another attempt may succeed (as after a reset connection, but not a 404) */
};

/* Returns whether a URL begins "http://" or "https://". */
bool vfm_download_takes(const char *url);

/* Writes the content of a URL to f.  Requests no compression.  If a server compresses by gzip or deflate anyway, bytes,
 * SHA-256 and max_bytes are those of the decompressed file.  Follows redirects only to http and https; checks
 * certificates.  The environment sets the proxy (http_proxy, no_proxy).  Local, thread-safe.  VFM_EENV: f cannot be
 * written.  VFM_EINPUT:
 *
 * - an error of the server, or a timeout
 * - fewer bytes than the server announced, or an end before the last chunk
 * - another content coding, or data that decompress to more than 100 times their length */
int vfm_download(const char *url, FILE *f, const struct vfm_download_opts *o, struct vfm_download_result *r,
	struct vfm_err *err);

#endif
