/* fetch.h - downloads URLs to files of a folder, with retries: over HTTP and HTTPS, or by a command.
 *
 * The file of a URL is DIR/NAME.  NAME is the first 32 digits of the URL's SHA-256, plus the extension of the URL's
 * path if it is that of a video or image.  The file is complete or absent.
 *
 * A command runs once for each URL, with the URL and a path as its last two arguments ($1 and $2 in a shell).  It
 * writes the file at that path, in an empty folder of its own.  Status 0 and a file mean success; the end of its stderr
 * explains a failure.  It is killed with its process group when its time is over, or when this process ends.
 */
#ifndef VFM_DATA_DATASET_FETCH_H
#define VFM_DATA_DATASET_FETCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "io/hash.h"

struct vfm_fetch_opts {
	const char *dir;
	const char *command; /* NULL: HTTP and HTTPS without a command */
	bool shell;          /* the command is run by sh */
	double timeout_s;    /* for a URL, including retries */
	double stall_s;      /* without a byte, only for HTTP; 0: no limit */
	double wait_s;       /* before the first retry; doubles with each, up to 60 s */
	int64_t retries;     /* after transient failures */
	int64_t max_bytes;   /* of a file; 0: no limit */
	bool allow_empty;    /* an empty file is not a failure */
	bool any_length;     /* media/av/download.h */
	const char *ca_file; /* media/av/download.h */
};

struct vfm_fetched {
	char *path; /* the caller frees it */
	int64_t bytes;
	char sha256[VFM_SHA256_HEX];
};

struct vfm_fetch;

enum { VFM_FETCH_JOBS = 256 }; /* threads that may fetch at once */

/* Makes the folder.  For a command, also starts a guardian process (io/process.h): call it while the process has few
 * threads.  VFM_EUSAGE: an option is out of range. */
int vfm_fetch_open(struct vfm_fetch **f, const struct vfm_fetch_opts *o, struct vfm_err *err);
/* No other call may be in progress.  No-op for NULL. */
void vfm_fetch_close(struct vfm_fetch *f);

/* Fetches a URL.  VFM_EINPUT: the download failed; err has the reason and the number of attempts.  VFM_EUSAGE: the
 * command cannot be started; VFM_EENV: the file cannot be written.  Thread-safe. */
int vfm_fetch_url(struct vfm_fetch *f, const char *url, struct vfm_fetched *to, struct vfm_err *err);

#endif
