/* The configuration: any JSON, followed by any assignments (after a NUL: --set texts, a line each).  What is
 * accepted is printed as a text that reads back as the same text, and its counts are finite. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "spec/model/linears.h"
#include "train/job/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void text_of(const struct vfm_config *c, struct vfm_buf *b)
{
	json_t *o = vfm_config_to_json(c);

	vfm_json_text(b, o, 0);
	json_decref(o);
}

static void check_accepted(struct vfm_config *c)
{
	struct vfm_buf a = {0}, b = {0};
	struct vfm_pack_sums sums = {0};
	struct vfm_config again;
	struct vfm_err err;
	json_t *o;

	text_of(c, &a);
	o = vfm_json_parse(a.data, a.len, "printed", &err);
	vfm_config_defaults(&again);
	if (!o || vfm_config_json(&again, o, &err) < 0 || vfm_config_check(&again, &err) < 0)
		abort();
	text_of(&again, &b);
	if (strcmp(a.data, b.data) != 0)
		abort();
	json_decref(o);
	vfm_buf_release(&a);
	vfm_buf_release(&b);
	vfm_pack_sums_add(&sums, (const int32_t[3]){4, 10, 25}, 10);
	if (vfm_model_params(&c->model) <= 0 || !isfinite(vfm_model_flops(&c->model, &sums)))
		abort();
	for (int64_t step = 0; step < 8; step++)
		if (!isfinite(vfm_lr_at(&c->train, step, 4)))
			abort();
}

static int assign(struct vfm_config *c, const char *text, size_t len, struct vfm_err *err)
{
	int rc = 0;

	for (size_t n; rc == 0 && len; text += n, len -= n) {
		const char *nl = memchr(text, '\n', len);
		char *line;

		n = nl ? (size_t)(nl - text) + 1 : len;
		line = vfm_calloc(n + 1, 1);
		memcpy(line, text, nl ? n - 1 : n);
		rc = vfm_config_set(c, line, err);
		free(line);
	}
	return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
	size_t head = nul ? (size_t)(nul - data) : size;
	struct vfm_err err = {0};
	struct vfm_config c;
	json_t *o = NULL;
	int rc = 0;

	vfm_config_defaults(&c);
	if (head) {
		o = vfm_json_parse((const char *)data, head, "fuzz", &err);
		rc = o ? vfm_config_json(&c, o, &err) : VFM_EUSAGE;
		json_decref(o);
	}
	if (rc == 0 && nul)
		rc = assign(&c, (const char *)nul + 1, size - head - 1, &err);
	if (rc == 0)
		rc = vfm_config_check(&c, &err);
	if (rc == 0)
		check_accepted(&c);
	else if (rc != VFM_EUSAGE || !err.msg[0])
		abort();
	return 0;
}
