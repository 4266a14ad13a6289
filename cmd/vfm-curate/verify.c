/* verify - checks shards against their indexes and checksums. */
#include <inttypes.h>
#include <stdio.h>

#include "base/log.h"
#include "io/json.h"
#include "io/opt.h"
#include "curate.h"
#include "data/dataset/verify.h"

static void print_shard_fault(const struct vfm_fault *f, void *ctx)
{
	json_t *rec = json_pack("{s:i,s:o}", "v", 1, "dir", vfm_json_shown(f->dir));

	(void)ctx;
	if (f->shard)
		json_object_set_new(rec, "shard", vfm_json_shown(f->shard));
	if (f->index >= 0)
		json_object_set_new(rec, "index", json_integer(f->index));
	if (f->key)
		json_object_set_new(rec, "key", vfm_json_shown(f->key));
	json_object_set_new(rec, "error", vfm_json_shown(f->what));
	vfm_jsonl_write(stdout, rec, NULL); /* main checks stdout at the end */
	json_decref(rec);
}

int curate_verify(int argc, char **argv, struct vfm_err *err)
{
	struct vfm_verify_counts counts = {0};
	struct vfm_opt opts[] = {{0}};
	struct vfm_cmd cmd = {
		.name = "vfm-curate verify",
		.synopsis = "[OPTION ...] DIR ...",
		.summary = "check shards against their indexes and checksums",
		.opts = opts,
	};
	int n = 0, rc = vfm_opt_parse(&cmd, argc, argv, &n, err);

	if (rc != 0)
		return rc;
	if (n == 0)
		return vfm_fail(err, VFM_EUSAGE, "DIR is missing: a folder with index.vfmi");
	for (int i = 1; rc == 0 && i <= n; i++)
		rc = vfm_verify(argv[i], print_shard_fault, NULL, &counts, err);
	if (rc == 0) {
		vfm_info("%" PRId64 " shards, %" PRId64 " samples, %" PRId64 " bytes: %" PRId64 " faults",
			counts.shards, counts.samples, counts.bytes, counts.faults);
		if (counts.without_chain)
			vfm_info("%" PRId64 " datasets have no provenance.json: their history is unknown",
				counts.without_chain);
		if (counts.unbound)
			vfm_info("%" PRId64 " samples have no sha256 of their files and caption: whether these belong "
				 "together was not checked",
				counts.unbound);
		if (counts.unhashed)
			vfm_info("%" PRId64
				 " shards have a hash in index.json that OpenSSL cannot compute (%s): it was "
				 "not checked",
				counts.unhashed, counts.hash);
		if (counts.shared)
			vfm_info("%" PRId64 " samples have the key of a sample of another dataset", counts.shared);
		rc = counts.faults ? VFM_EINPUT : 0;
	}
	vfm_verify_release(&counts);
	return rc;
}
