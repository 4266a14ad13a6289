/* fetch - downloads the files of URLs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/opt.h"
#include "curate.h"
#include "data/dataset/fetch.h"

struct fetch {
	struct vfm_fetch_opts o;
	struct vfm_fetch *fetcher;
	bool urls;
	/* lines of URLs */
	char **files;
	int n_files, at;
	FILE *in;
	char *line;
	size_t cap;
};

/* ---- lines ---- */

static int open_lines(struct fetch *f, struct vfm_err *err)
{
	const char *path = f->n_files ? f->files[f->at] : "-";

	if (f->at >= (f->n_files ? f->n_files : 1))
		return 0;
	f->at++;
	f->in = strcmp(path, "-") ? fopen(path, "re") : stdin;
	return f->in ? 1 : vfm_fail_errno(err, VFM_EUSAGE, "cannot read '%s'", path);
}

/* Removes blanks and the end of the line around a URL. */
static char *trim(char *s, size_t len)
{
	while (len && strchr(" \t\r\n", s[len - 1]))
		s[--len] = 0;
	return s + strspn(s, " \t");
}

static int next_url(void *source, json_t **rec, struct vfm_err *err)
{
	struct fetch *f = source;
	json_t *text;
	ssize_t n;
	char *url;
	int rc;

	for (;;) {
		if (!f->in && (rc = open_lines(f, err)) <= 0)
			return rc;
		n = getline(&f->line, &f->cap, f->in);
		if (n < 0 && !feof(f->in))
			return vfm_fail_errno(err, VFM_EENV, "cannot read the URLs");
		if (n < 0) {
			if (f->in != stdin)
				fclose(f->in);
			f->in = NULL;
			continue;
		}
		if (memchr(f->line, 0, (size_t)n))
			return vfm_fail(err, VFM_EINPUT, "a line of the URLs has a NUL");
		url = trim(f->line, (size_t)n);
		if (!*url)
			continue;
		text = json_string(url);
		if (!text)
			return vfm_fail(err, VFM_EINPUT, "a URL is not UTF-8");
		*rec = json_pack("{s:i,s:o}", "v", 1, "url", text);
		return 1;
	}
}

/* ---- records ---- */

static int fetch_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	const struct fetch *f = ctx;
	const char *url = vfm_rec_str(rec, "url", NULL);
	struct vfm_fetched got;

	(void)out, (void)worker;
	if (!url)
		url = vfm_rec_str(rec, "src", NULL);
	if (!url)
		return vfm_fail(err, VFM_EINPUT, "the record has neither url nor src");
	TRY(vfm_fetch_url(f->fetcher, url, &got, err));
	json_object_set_new(rec, "url", json_string(url));
	json_object_set_new(rec, "src", json_string(got.path));
	json_object_set_new(rec, "bytes", json_integer((json_int_t)got.bytes));
	json_object_set_new(rec, "sha256", json_string(got.sha256));
	free(got.path);
	return 0;
}

static int run_fetch(struct fetch *f, struct vfm_stage *stage, struct vfm_err *err)
{
	char *options;
	int rc;

	if (stage->opts.jobs > VFM_FETCH_JOBS)
		return vfm_fail(err, VFM_EUSAGE, "-j: expected 1 to %d", VFM_FETCH_JOBS);
	TRY(vfm_fetch_open(&f->fetcher, &f->o, err));
	options = f->o.command ? vfm_strfmt("%s%s", f->o.shell ? "shell " : "", f->o.command) : NULL;
	stage->options = f->o.any_length ? "any-length" : options; /* such a file may be incomplete */
	rc = vfm_stage_run(stage, NULL, err);
	vfm_fetch_close(f->fetcher);
	if (f->in && f->in != stdin)
		fclose(f->in);
	free(f->line);
	free(options);
	return rc;
}

int curate_fetch(int argc, char **argv, struct vfm_err *err)
{
	static const char *const reads[] = {"url", "src", NULL},
				 *const sets[] = {"url", "src", "bytes", "sha256", NULL},
				 *const outputs[] = {"src", NULL};
	struct fetch f = {.o = {.timeout_s = 3600, .stall_s = 60, .wait_s = 1, .retries = 3}};
	struct vfm_stage stage = {.name = "fetch",
		.version = 2, /* 1: took cut chunked bodies, and compressed files as they were sent */
		.fn = fetch_record,
		.ctx = &f,
		.source = &f,
		.key = "url",
		.reads = reads,
		.sets = sets,
		.outputs = outputs};
	struct vfm_opt opts[] = {
		{VFM_OPT_TEXT, 'd', "dir", "DIR", "write the files into DIR", &f.o.dir, .required = true},
		{VFM_OPT_FLAG, 0, "urls", NULL, "read URLs, one per line, instead of records", &f.urls},
		{VFM_OPT_STR, 0, "fetch", "CMD", "run CMD URL FILE for each URL (s3 and others)", &f.o.command},
		{VFM_OPT_FLAG, 0, "fetch-shell", NULL, "start CMD with sh -c; $1 is the URL, $2 the file", &f.o.shell},
		VFM_TIMEOUT_OPT("give up on a URL after so long (default 3600)", &f.o.timeout_s),
		{VFM_OPT_NUM, 0, "stall", "SECONDS", "end a connection after so long without data (default 60)",
			&f.o.stall_s},
		{VFM_OPT_INT, 0, "retries", "N", "repeat temporary failures up to N times (default 3)", &f.o.retries},
		{VFM_OPT_NUM, 0, "wait", "SECONDS", "before the first retry, doubled with each (default 1)",
			&f.o.wait_s},
		{VFM_OPT_SIZE, 0, "max-bytes", "SIZE", "refuse longer files", &f.o.max_bytes},
		{VFM_OPT_FLAG, 0, "any-length", NULL, "take files whose length the server does not name",
			&f.o.any_length},
		{VFM_OPT_STR, 0, "ca-file", "FILE", "trust the certificates of FILE instead of the system's",
			&f.o.ca_file},
		VFM_STAGE_OPTS(&stage.opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate fetch",
		.synopsis = "-d DIR [OPTION ...] [FILE ...]",
		.summary = "download the files of URLs",
		.opts = opts,
	};
	int rc = curate_parse(&cmd, &stage, argc, argv, err);

	if (rc != 0)
		return rc;
	f.files = stage.files;
	f.n_files = stage.n_files;
	stage.next = f.urls ? next_url : NULL;
	return run_fetch(&f, &stage, err);
}
