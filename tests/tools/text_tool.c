/* text_tool ids TOKENIZER MAX_LEN: reads JSON Lines {"text": ...} and writes {"ids": [...]} or {"error": ...} for each.
 * text_tool clean: writes {"text": ...}, cleaned.
 * text_tool encode DIR f32|bf16 OUT [stream] [clean]: writes the rows of all texts to OUT in f32, and {"rows": ...,
 * "dim": ...} for each; on stderr the seconds, those of all CPUs, and the peak of memory.  For tests/ref/check_text.py.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "device/cpu/cpu.h"
#include "encoder/text/clean.h"
#include "encoder/text/t5.h"
#include "encoder/text/text_tokenizer.h"
#include "io/json.h"

static json_t *answer_ids(const struct vfm_text_tokenizer *t, const char *text, int64_t max_len, struct vfm_err *err)
{
	int32_t *ids = vfm_malloc((size_t)max_len * sizeof(*ids));
	int64_t n = vfm_text_tokenizer_encode(t, text, max_len, ids, err);
	json_t *list = json_array();

	for (int64_t i = 0; i < n; i++)
		json_array_append_new(list, json_integer(ids[i]));
	free(ids);
	return n < 0 ? json_pack("{s:o,s:s}", "ids", list, "error", err->msg) : json_pack("{s:o}", "ids", list);
}

static json_t *answer_clean(const char *text, struct vfm_err *err)
{
	struct vfm_buf b = {0};
	json_t *o;

	o = vfm_clean_text(text, &b, err) < 0 ? json_pack("{s:s}", "error", err->msg)
					      : json_pack("{s:s%}", "text", b.data, b.len);
	vfm_buf_release(&b);
	return o;
}

/* Reads all texts of stdin. */
static int read_texts(char ***texts, int *n, struct vfm_err *err)
{
	struct vfm_jsonl in = {.max_line = 256 << 20};
	size_t cap = 0;
	json_t *o;
	int rc;

	TRY(vfm_jsonl_open(&in, "-", err));
	while ((rc = vfm_jsonl_next(&in, &o, err)) > 0) {
		const char *text = json_string_value(json_object_get(o, "text"));

		vfm_grow(texts, &cap, (size_t)*n + 1, sizeof(**texts));
		(*texts)[(*n)++] = vfm_strdup(text ? text : "");
		json_decref(o);
	}
	vfm_jsonl_close(&in);
	return rc;
}

static int write_rows(const char *path, float **rows, const int64_t *n_rows, int n, int64_t dim, struct vfm_err *err)
{
	FILE *f = fopen(path, "wb");

	if (!f)
		return vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", path);
	for (int i = 0; i < n; i++) {
		fwrite(rows[i], sizeof(float) * (size_t)dim, (size_t)n_rows[i], f);
		printf("{\"rows\": %lld, \"dim\": %lld}\n", (long long)n_rows[i], (long long)dim);
		free(rows[i]);
	}
	return fclose(f) ? vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", path) : 0;
}

static int encode_texts(int argc, char **argv, struct vfm_err *err)
{
	struct vfm_t5_opts o = {.path = argv[2]};
	struct vfm_dev *dev = vfm_cpu_open(err);
	struct vfm_stream *s = dev ? dev->t->stream_new(dev, false, err) : NULL;
	struct vfm_t5 *t = NULL;
	struct vfm_encoder_id encoder_id;
	struct rusage u;
	char **texts = NULL;
	int64_t *n_rows;
	float **rows;
	int n = 0, rc;
	double t0, cpu = 0;

	for (int i = 5; i < argc; i++) {
		o.stream |= !strcmp(argv[i], "stream");
		o.clean |= !strcmp(argv[i], "clean");
	}
	TRY(vfm_dtype_parse(argv[3], &o.dtype, err));
	TRY(read_texts(&texts, &n, err));
	TRY(vfm_t5_open(&t, s, &o, err));
	rows = vfm_calloc((size_t)n + 1, sizeof(*rows));
	n_rows = vfm_calloc((size_t)n + 1, sizeof(*n_rows));
	for (int i = 0; i < 2; i++) { /* the second run is timed */
		for (int k = 0; k < n; k++)
			free(rows[k]);
		t0 = vfm_now();
		cpu = (double)clock();
		TRY(vfm_t5_encode(t, (const char *const *)texts, n, rows, n_rows, err));
	}
	t0 = vfm_now() - t0;
	cpu = ((double)clock() - cpu) / CLOCKS_PER_SEC;
	getrusage(RUSAGE_SELF, &u);
	fprintf(stderr, "%.3f s, %.3f CPU s, %.1f MiB\n", t0, cpu, (double)u.ru_maxrss / 1024);
	TRY(vfm_t5_id(t, &encoder_id, err));
	fprintf(stderr, "%s %s\n", encoder_id.name, encoder_id.sha256);
	rc = write_rows(argv[4], rows, n_rows, n, vfm_t5_dim(t), err);
	for (int i = 0; i < n; i++)
		free(texts[i]);
	free(texts);
	free(rows);
	free(n_rows);
	vfm_t5_close(t);
	dev->t->stream_free(s);
	dev->t->dev_free(dev);
	return rc;
}

int main(int argc, char **argv)
{
	struct vfm_jsonl in = {.max_line = 256 << 20};
	struct vfm_text_tokenizer *t = NULL;
	struct vfm_err err = {0};
	json_t *o;
	int rc = 0;

	if (argc == 4 && !strcmp(argv[1], "ids"))
		rc = vfm_text_tokenizer_open(&t, argv[2], &err);
	else if (argc >= 5 && !strcmp(argv[1], "encode")) {
		rc = encode_texts(argc, argv, &err);
		goto out;
	} else if (argc != 2 || strcmp(argv[1], "clean") != 0)
		rc = vfm_fail(&err, VFM_EUSAGE,
			"usage: text_tool ids TOKENIZER MAX_LEN | text_tool clean | text_tool encode DIR DTYPE OUT "
			"...");
	if (rc >= 0)
		rc = vfm_jsonl_open(&in, "-", &err);
	while (rc >= 0 && (rc = vfm_jsonl_next(&in, &o, &err)) > 0) {
		const char *text = json_string_value(json_object_get(o, "text"));
		json_t *out = t ? answer_ids(t, text ? text : "", atoll(argv[3]), &err)
				: answer_clean(text ? text : "", &err);

		rc = vfm_jsonl_write(stdout, out, &err);
		json_decref(out);
		json_decref(o);
	}
	vfm_jsonl_close(&in);
	vfm_text_tokenizer_close(t);
out:
	if (rc < 0)
		fprintf(stderr, "text_tool: %s\n", err.msg);
	return rc < 0 ? -rc & 0x7f : 0;
}
