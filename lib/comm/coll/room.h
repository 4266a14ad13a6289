/* comm/coll - communicators and their collectives, for every backend.
 *
 * The table of functions of a backend, the backend of one rank, sums of the ranks' operands, sums between nodes.
 *
 * Used by: comm/device, comm/host, net, train, vfm-bench
 * Calls: base, device/dev, device/ops, spec/model
 * Read first: comm.h, comm_nodes.h
 */
