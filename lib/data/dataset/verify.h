/* verify.h - compares a dataset's shards with its indexes, byte for byte.  Thread-safe. */
#ifndef VFM_DATA_DATASET_VERIFY_H
#define VFM_DATA_DATASET_VERIFY_H

#include <stdint.h>

#include "base/err.h"
#include "data/record/sample_set.h"

struct vfm_fault { /* strings are valid during the call */
	const char *dir;
	const char *shard; /* "000001.tar"; NULL: the whole dataset */
	int64_t index;     /* of the sample; -1: the whole shard */
	const char *key;   /* NULL: none */
	const char *what;
};

struct vfm_verify_counts { /* `= {0}`, and release at the end */
	int64_t datasets, shards, samples, bytes, faults;
	int64_t without_chain;     /* datasets without provenance.json (data/record/provenance.h) */
	int64_t unbound;           /* samples whose record lacks digests (binding.h) */
	int64_t shared;            /* samples that are also in an earlier dataset */
	int64_t unhashed;          /* shards with a hash in index.json that OpenSSL cannot compute */
	char hash[32];             /* the first such hash */
	struct vfm_sample_set ids; /* of all samples */
};

/* Compares everything, reports each fault, and adds to `counts`.  A key that occurs twice in a dataset is a fault; a
 * key of an earlier dataset is only counted.  Returns 0 even if it found faults.  VFM_EUSAGE: the dataset has no
 * index. */
int vfm_verify(const char *dir, void (*tell)(const struct vfm_fault *f, void *ctx), void *ctx,
	struct vfm_verify_counts *counts, struct vfm_err *err);
void vfm_verify_release(struct vfm_verify_counts *counts);

#endif
