"""The operations of a compiled program in which no product of matrices can hide, all loops and calls included.

What is neither here nor counted by plan.flops is named in a plan, so that nothing new is taken for free.
"""

_NAMES = """
abs acos acosh add add-dependency after-all all-gather all-gather-done all-gather-start all-reduce all-reduce-done
all-reduce-start all-to-all and asin asinh async-done async-start async-update atan2 atan atanh batch-norm-grad
batch-norm-inference batch-norm-training bitcast bitcast-convert broadcast call cbrt ceil clamp collective-broadcast
collective-permute collective-permute-done collective-permute-start compare complex concatenate conditional constant
convert copy copy-done copy-start cosine cosh count-leading-zeros divide domain dynamic-reshape dynamic-slice
dynamic-update-slice erf exponential exponential-minus-one floor fusion gather get-dimension-size get-tuple-element
imag infeed iota is-finite log log-plus-one logistic map maximum minimum multiply negate not opt-barrier
optimization-barrier or outfeed pad parameter partition-id popcnt power ragged-all-to-all real recv recv-done reduce
reduce-precision reduce-scatter reduce-window remainder replica-id reshape reverse rng rng-bit-generator
rng-get-and-update-state round-nearest-afz round-nearest-even rsqrt scatter select select-and-scatter send send-done
set-dimension-size shift-left shift-right-arithmetic shift-right-logical sign sine sinh slice sort sqrt
stochastic-convert subtract tan tanh topk transpose tuple while xor
"""
_TARGETS = "TopK Sharding SPMDFullToShardShape SPMDShardToFullShape annotate_device_placement"

WITHOUT_PRODUCTS = frozenset(_NAMES.split())
CUSTOM_CALLS_WITHOUT_PRODUCTS = frozenset(_TARGETS.split())
