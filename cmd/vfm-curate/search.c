/* search - the records whose vectors are most similar to a text, a clip or a record. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "curate.h"
#include "curate/dedup/search.h"
#include "encoder/exec/payload.h"
#include "exec_stage.h"
#include "io/input.h"
#include "io/opt.h"

struct query {
	struct exec_stage model;
	const char *id, *vector, *text, *clip;
	struct vfm_search *search;
	float *x;
	bool asked, answered;
};

/* The only record of the stage that asks the model. */
static int next_query(void *source, json_t **rec, struct vfm_err *err)
{
	struct query *q = source;

	(void)err;
	if (q->asked)
		return 0;
	q->asked = true;
	*rec = q->clip ? json_pack("{s:i,s:s,s:s}", "v", 1, "id", "query", "src", q->clip)
		       : json_pack("{s:i,s:s}", "v", 1, "id", "query");
	return 1;
}

static int ask_model(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	struct query *q = ctx;
	struct vfm_exec_slot *slot = vfm_exec_slot(q->model.exec, worker);
	struct vfm_encoder_id model = vfm_outside_id(vfm_exec_hello(q->model.exec));
	struct vfm_npy npy;
	const void *data;
	int rc;

	(void)out;
	rc = q->text ? vfm_outside_ask(slot, VFM_EXEC_EMBED_TEXT, json_pack("{s:s}", "text", q->text), (int64_t[]){0},
			       &npy, &data, err)
		     : exec_stage_vector(&q->model, slot, rec, &npy, &data, err);
	if (rc >= 0)
		rc = vfm_search_of_array(q->search, &npy, data, &model, q->x, err);
	q->answered = rc >= 0;
	return rc == VFM_EINPUT ? VFM_EUSAGE : rc; /* without a query the command cannot continue */
}

static int embed_query(struct query *q, struct vfm_err *err)
{
	struct vfm_stage stage = {
		.name = "search", .fn = ask_model, .ctx = q, .silent = true, .next = next_query, .source = q};

	stage.opts.share = "0/1";
	q->model.shows_nothing = q->text;
	return exec_stage_run(&q->model, &stage, q->text ? "embed-text" : "embed", NULL, err);
}

static int find_query(struct query *q, struct vfm_err *err)
{
	q->x = vfm_calloc((size_t)q->search->vectors.dim + 1, sizeof(*q->x));
	if (q->id)
		return vfm_search_of_id(q->search, q->id, q->x, err);
	if (q->vector)
		return vfm_search_of_file(q->search, q->vector, q->x, err);
	return embed_query(q, err);
}

static int check_query(const struct query *q, struct vfm_err *err)
{
	int n = !!q->id + !!q->vector + !!q->text + !!q->clip;

	if (n != 1)
		return vfm_fail(
			err, VFM_EUSAGE, "expected one of --id, --vector, --text and --clip, got %d of them", n);
	if (!q->text && !q->clip) {
		if (q->model.command || q->model.frames || q->model.fps > 0)
			return vfm_fail(err, VFM_EUSAGE, "--exec, --frames, --fps: only with --text or --clip");
		return vfm_exec_refuse_opts(&q->model.opts, "--exec CMD", err);
	}
	return q->text && (q->model.frames || q->model.fps > 0)
		? vfm_fail(err, VFM_EUSAGE, "--frames, --fps: a text shows no frames")
		: 0;
}

static int run_search(struct query *q, char **files, int n, int64_t k, const char *key, const char *matrix,
	const char *save, struct vfm_err *err)
{
	struct vfm_twice inputs = {0};
	struct vfm_search s = {0};
	int rc;

	q->search = &s;
	TRY_OUT(vfm_twice_open(&inputs, files, n, err));
	TRY_OUT(vfm_search_open(&s, inputs.paths, inputs.n, key, matrix, err));
	if (s.left_out)
		vfm_info("%lld records without a vector are left out", (long long)s.left_out);
	if (save)
		TRY_OUT(vfm_search_save(&s, save, err));
	TRY_OUT(find_query(q, err));
	TRY_OUT(vfm_search_write(&s, q->x, k, stdout, err));
out:
	free(q->x);
	vfm_search_close(&s);
	vfm_twice_close(&inputs);
	return rc;
}

int curate_search(int argc, char **argv, struct vfm_err *err)
{
	struct query q = {.model = {.opts = VFM_EXEC_DEFAULTS, .timeout_s = 3600}};
	const char *key = "embedding", *matrix = NULL, *save = NULL;
	int64_t k = 10;
	int n = 0, rc;
	struct vfm_opt opts[] = {
		{VFM_OPT_INT, 0, "count", "N", "print the N nearest records (default 10)", &k},
		{VFM_OPT_STR, 0, "id", "ID", "nearest to the record ID", &q.id},
		{VFM_OPT_STR, 0, "vector", "FILE", "nearest to the vector of an npy file", &q.vector},
		{VFM_OPT_STR, 0, "text", "TEXT", "nearest to a text, which --exec embeds", &q.text},
		{VFM_OPT_STR, 0, "clip", "FILE", "nearest to a video or image, which --exec embeds", &q.clip},
		{VFM_OPT_STR, 0, "key", "KEY", "key of the vectors (default embedding)", &key},
		{VFM_OPT_STR, 0, "vectors", "NPY", "read the vectors from the rows of one file", &matrix},
		{VFM_OPT_STR, 0, "save-vectors", "NPY", "write that file", &save},
		EXEC_STAGE_OPTS(&q.model),
		VFM_EXEC_OPTS(&q.model.opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate search",
		.synopsis = "--id ID | --vector FILE [OPTION ...] [FILE ...]\n--text TEXT | --clip FILE --exec CMD "
			    "[OPTION ...] [FILE ...]",
		.summary = "find the clips nearest to a text, a clip or a vector",
		.opts = opts,
	};

	rc = vfm_opt_parse(&cmd, argc, argv, &n, err);
	if (rc != 0)
		return rc;
	TRY(check_query(&q, err));
	if (matrix && save)
		return vfm_fail(err, VFM_EUSAGE, "--vectors, --save-vectors: expected one of them");
	return run_search(&q, argv + 1, n, k, key, matrix, save, err);
}
