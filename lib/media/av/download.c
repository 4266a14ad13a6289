/* download.c - opens the URL by FFmpeg, reads the response's header from its log, and copies and checks the content. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <libavformat/avformat.h>
#include <libavformat/avio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "media/av/av.h"
#include "media/av/download.h"

#define CHUNK 65536

/* Decompressed bytes for each that was received, at most.  Media hardly compress; deflate can reach 1032. */
#define MAX_RATIO 100

/* The facts that FFmpeg's log tells about the response whose content is read.  Its API has neither the coding nor the
 * end of the chunks: a connection that ends between two chunks is an end like that of a whole file. */
struct reply {
	bool has_status;
	char coding[32]; /* Content-Encoding; "": none */
	bool is_chunked, has_end;
	bool is_damaged;     /* the compressed data */
	int64_t chunk_bytes; /* announced by the chunks so far */
};

struct download {
	const char *url;
	const struct vfm_download_opts *o;
	struct vfm_download_result *r;
	AVIOContext *io;
	struct reply reply;
	int64_t announced; /* bytes as sent; < 0: unknown */
	double last;       /* when the last byte came */
};

bool vfm_download_takes(const char *url)
{
	return !strncasecmp(url, "http://", 7) || !strncasecmp(url, "https://", 8);
}

/* ---- what FFmpeg logs ---- */

/* Returns the value of a header if the line has it. */
static const char *header_value(const char *line, const char *name)
{
	size_t n = strlen(name);

	if (strncasecmp(line, name, n) != 0 || line[n] != ':')
		return NULL;
	line += n + 1;
	return line + strspn(line, " \t");
}

static void take_http_header(struct reply *r, const char *line)
{
	const char *value;

	if (!strncmp(line, "HTTP/", 5)) /* of a proxy, a redirect, or at last the file */
		*r = (struct reply){.has_status = true};
	value = header_value(line, "Content-Encoding");
	if (value) {
		snprintf(r->coding, sizeof(r->coding), "%.*s", (int)strcspn(value, "'\r\n"), value);
		if (!strcasecmp(r->coding, "identity"))
			r->coding[0] = 0;
	}
	value = header_value(line, "Transfer-Encoding");
	if (value && !strncasecmp(value, "chunked", 7))
		r->is_chunked = true;
}

static void take_log_line(void *arg, const char *line)
{
	struct reply *r = arg;
	int64_t bytes;

	if (!strncmp(line, "header='", 8)) {
		take_http_header(r, line + 8);
	} else if (sscanf(line, "Chunked encoding data size: %" SCNd64, &bytes) == 1) {
		r->has_end = bytes == 0;
		r->chunk_bytes += bytes > 0 && bytes < INT64_MAX - r->chunk_bytes ? bytes : 0;
	} else if (!strncmp(line, "inflate return value", 20)) {
		r->is_damaged = true;
	}
}

static bool is_deflated(const struct reply *r)
{
	return !strcasecmp(r->coding, "gzip") || !strcasecmp(r->coding, "deflate");
}

/* ---- errors ---- */

static bool has_stalled(const struct download *d)
{
	return d->o->stall_s > 0 && vfm_now() - d->last > d->o->stall_s;
}

/* Ends a wait within FFmpeg. */
static int must_stop(void *arg)
{
	const struct download *d = arg;

	return d->reply.is_damaged || has_stalled(d) || (d->o->limit && vfm_limit_is_over(d->o->limit));
}

/* Returns whether a request that failed with `rc` may succeed later.  status: of HTTP, 0 unknown. */
static bool may_retry(int rc, int status)
{
	static const int final[] = {AVERROR_HTTP_BAD_REQUEST, AVERROR_HTTP_UNAUTHORIZED, AVERROR_HTTP_FORBIDDEN,
		AVERROR_HTTP_NOT_FOUND, AVERROR_PROTOCOL_NOT_FOUND, AVERROR(EINVAL)};

	if (status)
		return status >= 500 || status == 408 || status == 425 || status == 429;
	for (size_t i = 0; i < sizeof(final) / sizeof(final[0]); i++)
		if (rc == final[i])
			return false;
	return true;
}

/* A possible cause of a code that FFmpeg does not explain; NULL: the code tells. */
static const char *cause_of(const struct download *d, int rc)
{
	if (rc == AVERROR(EINVAL))
		return "the URL, or one that the server redirects to, is neither http nor https";
	if (rc == AVERROR(EIO) && !d->io)
		return "the server gives no valid answer, or redirects too often";
	return NULL;
}

/* Turns a code of FFmpeg into a message. */
static int download_failed(struct download *d, int rc, struct vfm_err *err)
{
	const char *line = vfm_av_last_line(), *cause = cause_of(d, rc);
	char buf[128];
	int status = 0;

	if (d->o->limit)
		TRY(vfm_limit_check(d->o->limit, d->url, err));
	d->r->may_retry = true;
	if (d->reply.is_damaged)
		return vfm_fail(err, VFM_EINPUT, "'%s': the %s data are damaged", d->url, d->reply.coding);
	if (has_stalled(d))
		return vfm_fail(err, VFM_EINPUT, "'%s': no data for %g s", d->url, d->o->stall_s);
	if (sscanf(line, "HTTP error %d", &status) == 1)
		vfm_fail(err, VFM_EINPUT, "'%s': %s", d->url, line);
	else if (!*line && cause)
		vfm_fail(err, VFM_EINPUT, "'%s': %s", d->url, cause);
	else
		vfm_fail(err, vfm_av_code(rc, VFM_EINPUT), "'%s': %s%s%s", d->url, vfm_av_strerror(rc, buf),
			*line ? ": " : "", line);
	d->r->may_retry = may_retry(rc, status);
	return err ? err->code : VFM_EINPUT;
}

/* ---- the request ---- */

static int check_reply(const struct download *d, struct vfm_err *err)
{
	const struct reply *r = &d->reply;

	if (!r->has_status)
		return vfm_fail(err, VFM_EENV,
			"'%s': the log of this version of FFmpeg does not show the header of the response", d->url);
	if (r->coding[0] && !is_deflated(r))
		return vfm_fail(err, VFM_EINPUT, "'%s': the server sends the file in the content coding '%s'", d->url,
			r->coding);
	if (d->announced < 0 && !d->o->any_length)
		return vfm_fail(err, VFM_EINPUT,
			"'%s': the server does not say how long the file is, so that an incomplete one would pass as "
			"whole",
			d->url);
	if (r->coding[0] && d->announced < 0 && !r->is_chunked)
		return vfm_fail(err, VFM_EINPUT, "'%s': the server sends %s data without a length", d->url, r->coding);
	if (d->o->max_bytes && d->announced > d->o->max_bytes && !r->coding[0])
		return vfm_fail(err, VFM_EINPUT, "'%s' has %" PRId64 " bytes, at most %" PRId64 " are allowed", d->url,
			d->announced, d->o->max_bytes);
	return 0;
}

static int open_url(struct download *d, struct vfm_err *err)
{
	AVIOInterruptCB stop = {must_stop, d};
	AVDictionary *options = NULL;
	char *url = vfm_strdup(d->url);
	int rc;

	for (char *c = url; *c != ':'; c++) /* FFmpeg knows schemes in small letters alone */
		*c = (char)tolower((unsigned char)*c);

	av_dict_set(&options, "protocol_whitelist", "http,https,httpproxy,tls,tcp", 0);
	av_dict_set(&options, "user_agent", "vfm-curate", 0);
	av_dict_set(&options, "seekable", "0", 0); /* one request of the whole file */
	av_dict_set(&options, "headers", "Accept-Encoding: identity\r\n", 0);
	av_dict_set(&options, "icy", "0", 0);
	av_dict_set(&options, "tls_verify", "1", 0);
	av_dict_set(&options, "verify", "1", 0);
	if (d->o->ca_file)
		av_dict_set(&options, "ca_file", d->o->ca_file, 0);
	vfm_av_forget_line();
	rc = avio_open2(&d->io, url, AVIO_FLAG_READ, &stop, &options);
	free(url);
	av_dict_free(&options);
	if (rc < 0)
		return download_failed(d, rc, err);
	d->announced = avio_size(d->io);
	return check_reply(d, err);
}

/* ---- the content ---- */

/* Returns whether an error is the end of a file without a length, which FFmpeg takes for one that is cut. */
static bool is_end(const struct download *d, int rc)
{
	return rc == AVERROR_EOF ||
		(rc == AVERROR(EIO) && d->announced < 0 && d->o->any_length && !d->reply.is_chunked &&
			!strncmp(vfm_av_last_line(), "Stream ends prematurely", 23));
}

/* Returns whether compressed data has grown beyond any media file. */
static bool is_bomb(const struct download *d)
{
	int64_t sent = d->announced >= 0 ? d->announced : d->reply.chunk_bytes;

	return is_deflated(&d->reply) && d->r->bytes / MAX_RATIO > sent;
}

static int copy_data(struct download *d, FILE *f, struct vfm_sha256 *hash, struct vfm_err *err)
{
	uint8_t *buf = vfm_malloc(CHUNK);
	int n, rc = 0;

	while (rc == 0 && (n = avio_read_partial(d->io, buf, CHUNK)) > 0) {
		d->last = vfm_now();
		d->r->bytes += n;
		vfm_sha256_add(hash, buf, (size_t)n);
		if (d->o->max_bytes && d->r->bytes > d->o->max_bytes)
			rc = vfm_fail(err, VFM_EINPUT, "'%s' has more than %" PRId64 " bytes", d->url, d->o->max_bytes);
		else if (is_bomb(d))
			rc = vfm_fail(err, VFM_EINPUT, "'%s': the %s data grow more than %d times", d->url,
				d->reply.coding, MAX_RATIO);
		else if (fwrite(buf, 1, (size_t)n, f) != (size_t)n)
			rc = vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", d->url);
		else if (must_stop(d))
			rc = download_failed(d, AVERROR_EXIT, err);
	}
	free(buf);
	if (rc < 0)
		return rc;
	n = n < 0 && n != AVERROR_EOF ? n : d->io->error;
	return n < 0 && !is_end(d, n) ? download_failed(d, n, err) : 0;
}

/* Checks that the whole response was received. */
static int check_length(const struct download *d, struct vfm_err *err)
{
	const struct vfm_download_result *r = d->r;

	if (d->reply.is_chunked && !d->reply.has_end)
		return vfm_fail(err, VFM_EINPUT,
			"'%s': the connection ended before the last chunk, after %" PRId64 " bytes", d->url, r->bytes);
	if (d->announced >= 0 && r->bytes != d->announced && !is_deflated(&d->reply))
		return vfm_fail(err, VFM_EINPUT, "'%s': got %" PRId64 " bytes, the server announced %" PRId64, d->url,
			r->bytes, d->announced);
	return 0;
}

int vfm_download(
	const char *url, FILE *f, const struct vfm_download_opts *o, struct vfm_download_result *r, struct vfm_err *err)
{
	struct download d = {.url = url, .o = o, .r = r, .last = vfm_now()};
	struct vfm_sha256 *hash = vfm_sha256_new();
	int rc;

	vfm_av_init();
	*r = (struct vfm_download_result){0};
	vfm_av_listen(take_log_line, &d.reply);
	rc = open_url(&d, err);
	if (rc == 0)
		rc = copy_data(&d, f, hash, err);
	if (rc == 0) {
		rc = check_length(&d, err);
		r->may_retry = rc < 0;
	}
	vfm_sha256_end(hash, r->sha256);
	avio_closep(&d.io);
	vfm_av_listen(NULL, NULL);
	return rc;
}
