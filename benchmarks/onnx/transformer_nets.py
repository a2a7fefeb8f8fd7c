"""Small networks of the package transformers with random weights, for architectures.py.

``NETS`` has the networks for each kind of inputs, by name: class, and settings of the
configuration. ``SMALL`` has settings for a small size, used where a configuration knows them.
"""

import inspect

import torch

SMALL = dict(
    vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
    intermediate_size=64, num_key_value_heads=2, head_dim=8, d_model=32, encoder_layers=2,
    decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
    decoder_ffn_dim=64, n_embd=32, n_layer=2, n_head=4, n_positions=64,
    max_position_embeddings=64, use_cache=False, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
    pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2, n_inner=64,
    embed_dim=32, ffn_dim=64, n_layers=2, n_heads=4, rotary_dim=8, num_local_experts=4,
    num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
    shared_expert_intermediate_size=32, state_size=8, emb_dim=32, dim=32, hidden_dim=64,
    embedding_size=32, word_embed_proj_dim=32, image_size=64, patch_size=16, d_inner=64,
    max_sequence_length=64, max_target_positions=64, max_source_positions=64,
    decoder_start_token_id=1, num_encoder_layers=2, num_decoder_layers=2, sliding_window=None,
)  # fmt: skip


def small(*names, **others):
    """Only these settings of ``SMALL``, and others."""
    return {"only": True, **{n: SMALL[n] for n in " ".join(names).split()}, **others}


LAYERS = "num_hidden_layers num_attention_heads"
BASE = f"vocab_size hidden_size {LAYERS} intermediate_size"
GPT = "vocab_size n_embd n_layer n_head n_positions use_cache"
T5 = "vocab_size d_model d_kv d_ff num_layers num_heads"
STACKS = (
    "vocab_size d_model encoder_layers decoder_layers encoder_attention_heads "
    "decoder_attention_heads encoder_ffn_dim decoder_ffn_dim use_cache"
)
IMAGE_32 = small(f"hidden_size {LAYERS} intermediate_size", image_size=32, patch_size=8)
ROTARY = "num_key_value_heads use_cache"
WAVES = dict(
    conv_dim=(32, 32, 32), conv_stride=(5, 2, 2), conv_kernel=(10, 3, 3),
    num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, num_feat_extract_layers=3,
    mask_time_prob=0.0,
)  # fmt: skip
STAGES = dict(hidden_sizes=[16, 32, 32, 64], depths=[1, 1, 1, 1])
PYRAMID = dict(hidden_sizes=[16, 32, 64, 64], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 4, 4])
WINDOWS = dict(num_heads=[2, 4], depths=[1, 1], window_size=4, patch_size=4, embed_dim=16)
TOWER = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)

NETS = {
    "text": {
        "bert": ("BertModel", small(BASE)),
        "bert_mlm": ("BertForMaskedLM", small(BASE)),
        "roberta": ("RobertaModel", small(BASE)),
        "electra": ("ElectraModel", small(BASE, embedding_size=16)),
        "distilbert": (
            "DistilBertModel", small("vocab_size dim n_layers n_heads hidden_dim"),
        ),
        "albert": ("AlbertModel", small(BASE, embedding_size=16)),
        "mpnet": ("MPNetModel", small(BASE)),
        "deberta": (
            "DebertaV2Model", small(BASE, relative_attention=True, pos_att_type=["p2c", "c2p"]),
        ),
        "squeezebert": ("SqueezeBertModel", small(BASE, "embedding_size")),
        "mobilebert": (
            "MobileBertModel", small(BASE, intra_bottleneck_size=32, embedding_size=16),
        ),
        "convbert": ("ConvBertModel", small(BASE, "embedding_size")),
        "xlm_roberta": ("XLMRobertaModel", small(BASE)),
        "modernbert": (
            "ModernBertModel",
            small(BASE, "pad_token_id cls_token_id sep_token_id bos_token_id eos_token_id"),
        ),
        "gpt2": ("GPT2LMHeadModel", small(GPT)),
        "gpt_neo": (
            "GPTNeoForCausalLM",
            small(
                "vocab_size hidden_size num_layers num_heads max_position_embeddings use_cache",
                attention_types=[[["global", "local"], 1]],
            ),
        ),
        "gpt_neox": ("GPTNeoXForCausalLM", small(BASE, "use_cache")),
        "gptj": ("GPTJForCausalLM", small(GPT, "rotary_dim")),
        "opt": (
            "OPTForCausalLM",
            small(
                f"vocab_size hidden_size {LAYERS} ffn_dim max_position_embeddings",
                "word_embed_proj_dim use_cache",
            ),
        ),
        "llama": ("LlamaForCausalLM", small(BASE, ROTARY)),
        "mistral": ("MistralForCausalLM", small(BASE, ROTARY, "sliding_window")),
        "qwen2": ("Qwen2ForCausalLM", small(BASE, ROTARY)),
        "gemma": ("GemmaForCausalLM", small(BASE, ROTARY, "head_dim")),
        "phi": ("PhiForCausalLM", small(BASE, "use_cache")),
        "bloom": ("BloomForCausalLM", small("vocab_size hidden_size n_layer n_head use_cache")),
        "t5_encoder": ("T5EncoderModel", small(T5, is_encoder_decoder=False)),
        "ernie": ("ErnieModel", {}),
        "roformer": ("RoFormerModel", {}),
        "layoutlm": ("LayoutLMModel", {}),
        "splinter": ("SplinterModel", {}),
        "nystromformer": ("NystromformerModel", {}),
        "longformer": ("LongformerModel", dict(attention_window=[4, 4])),
        "bigbird": ("BigBirdModel", dict(attention_type="original_full")),
        "rembert": ("RemBertModel", {}),
        "esm": ("EsmModel", dict(mask_token_id=4, position_embedding_type="rotary")),
        "ibert": ("IBertModel", {}),
        "luke": ("LukeModel", {}),
        "camembert": ("CamembertModel", {}),
        "data2vec": ("Data2VecTextModel", {}),
        "megatron": ("MegatronBertModel", {}),
        "mra": ("MraModel", {}),
        "flaubert": ("FlaubertModel", {}),
        "mpt": ("MptForCausalLM", {}),
        "codegen": ("CodeGenForCausalLM", {}),
        "gpt_bigcode": ("GPTBigCodeForCausalLM", {}),
        "stablelm": ("StableLmForCausalLM", {}),
        "starcoder2": ("Starcoder2ForCausalLM", {}),
        "phi3": ("Phi3ForCausalLM", {}),
        "olmo": ("OlmoForCausalLM", {}),
        "olmo2": ("Olmo2ForCausalLM", {}),
        "gemma2": ("Gemma2ForCausalLM", dict(sliding_window=4)),
        "gemma3": ("Gemma3ForCausalLM", dict(sliding_window=4)),
        "granite": ("GraniteForCausalLM", {}),
        "recurrent_gemma": (
            "RecurrentGemmaForCausalLM", dict(lru_width=32, attention_window_size=4),
        ),
        "qwen3": ("Qwen3ForCausalLM", {}),
        "persimmon": ("PersimmonForCausalLM", {}),
        "smollm3": ("SmolLM3ForCausalLM", {}),
        "openai_gpt": ("OpenAIGPTLMHeadModel", {}),
        "ctrl": ("CTRLModel", dict(dff=64)),
        "biogpt": ("BioGptForCausalLM", {}),
        "nemotron": ("NemotronForCausalLM", {}),
        "lfm2": ("Lfm2ForCausalLM", dict(layer_types=["conv", "full_attention"])),
    },
    "tokens of one size": {
        "fnet": (
            "FNetModel",
            small(
                "vocab_size hidden_size num_hidden_layers intermediate_size",
                use_tpu_fourier_optimizations=False,
            ),
        ),
    },
    "tokens": {
        "mamba": ("MambaForCausalLM", {}),
        "rwkv": ("RwkvForCausalLM", dict(attention_hidden_size=32)),
    },
    "two texts": {
        "t5": ("T5ForConditionalGeneration", small(T5, "use_cache")),
        "bart": ("BartForConditionalGeneration", small(STACKS, "max_position_embeddings")),
        "marian": (
            "MarianMTModel",
            small(STACKS, "max_position_embeddings", pad_token_id=99, decoder_start_token_id=0),
        ),
        "pegasus": ("PegasusForConditionalGeneration", {}),
        "mbart": ("MBartForConditionalGeneration", {}),
        "m2m100": ("M2M100ForConditionalGeneration", {}),
        "led": (
            "LEDForConditionalGeneration",
            dict(
                attention_window=[4, 4], max_encoder_position_embeddings=64,
                max_decoder_position_embeddings=64,
            ),
        ),
        "longt5": ("LongT5ForConditionalGeneration", dict(local_radius=4)),
        "switch": ("SwitchTransformersForConditionalGeneration", {}),
        "mt5": ("MT5ForConditionalGeneration", {}),
        "umt5": ("UMT5ForConditionalGeneration", {}),
        "blenderbot": ("BlenderbotForConditionalGeneration", {}),
        "fsmt": (
            "FSMTForConditionalGeneration",
            dict(src_vocab_size=100, tgt_vocab_size=100, langs=["a", "b"]),
        ),
        "bigbird_pegasus": (
            "BigBirdPegasusForConditionalGeneration", dict(attention_type="original_full"),
        ),
        "pegasus_x": (
            "PegasusXForConditionalGeneration", dict(block_size=4, num_global_tokens=4),
        ),
    },
    "wave": {
        "wav2vec2": ("Wav2Vec2Model", small(BASE, **WAVES)),
        "hubert": ("HubertModel", small(BASE, **WAVES)),
    },
    "waves": {
        name: (model, {**WAVES, "pad_token_id": 0})
        for name, model in {
            "unispeech": "UniSpeechSatModel", "sew": "SEWModel", "sewd": "SEWDModel",
            "data2vec_audio": "Data2VecAudioModel",
        }.items()
    },
    "mel and text": {
        "whisper": (
            "WhisperForConditionalGeneration",
            small(
                STACKS, "pad_token_id bos_token_id eos_token_id decoder_start_token_id",
                max_source_positions=50, max_target_positions=40, num_mel_bins=20,
                suppress_tokens=[], begin_suppress_tokens=[],
            ),
        ),
    },
    "images of 32": {
        "vit": ("ViTModel", IMAGE_32),
        "deit": ("DeiTModel", IMAGE_32),
        "beit": ("BeitModel", {**IMAGE_32, "use_relative_position_bias": True}),
        "dinov2": (
            "Dinov2Model", small(f"hidden_size {LAYERS}", image_size=32, patch_size=8),
        ),
        "clip_vision": ("CLIPVisionModel", IMAGE_32),
        "siglip": ("SiglipVisionModel", IMAGE_32),
        "swin": ("SwinModel", small(image_size=32, **WINDOWS)),
    },
    "image of 32": {
        "dpt": (
            "DPTForDepthEstimation",
            {
                **IMAGE_32, "backbone_out_indices": [0, 0, 1, 1], "is_hybrid": False,
                "neck_hidden_sizes": [8, 16, 32, 32], "fusion_hidden_size": 16,
            },
        ),
        "yolos": (
            "YolosForObjectDetection",
            {**IMAGE_32, "image_size": [32, 32], "num_detection_tokens": 5},
        ),
    },
    "image of 64": {
        "mobilevit": (
            "MobileViTModel",
            small(
                "image_size", hidden_sizes=[16, 24, 32],
                neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 64],
            ),
        ),
    },
    "batch of one of 64": {
        "segformer": (
            "SegformerForSemanticSegmentation",
            small(**STAGES, decoder_hidden_size=32, num_attention_heads=[1, 2, 2, 4]),
        ),
        "poolformer": (
            "PoolFormerModel", small(hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1]),
        ),
        "mobilenet_v2": ("MobileNetV2Model", small(depth_multiplier=0.35)),
        "regnet": ("RegNetModel", small(**STAGES, embedding_size=16, groups_width=8)),
    },
    "images of 64": {
        "convnextv2": ("ConvNextV2Model", small(**STAGES)),
        "swinv2": ("Swinv2Model", WINDOWS),
        "levit": (
            "LevitModel",
            dict(num_attention_heads=[2, 4, 4], hidden_sizes=[32, 64, 64], depths=[1, 1, 1]),
        ),
        "pvt": ("PvtModel", dict(**PYRAMID, patch_sizes=[4, 2, 2, 2])),
        "pvtv2": ("PvtV2Model", dict(**PYRAMID, patch_sizes=[7, 3, 3, 3])),
        "glpn": (
            "GLPNForDepthEstimation",
            {**PYRAMID, "hidden_sizes": [16, 32, 32, 32], "decoder_hidden_size": 16},
        ),
        "focalnet": (
            "FocalNetModel",
            dict(
                patch_size=4, embed_dim=16, depths=[1, 1], hidden_sizes=[16, 32],
                focal_levels=[2, 2], focal_windows=[3, 3],
            ),
        ),
        "resnet": ("ResNetModel", dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])),
        "bit": (
            "BitModel",
            dict(embedding_size=8, hidden_sizes=[32, 64], depths=[1, 1], num_groups=4),
        ),
        "dinov3": ("DINOv3ViTModel", {}),
        "ijepa": ("IJepaModel", {}),
        "hiera": (
            "HieraModel",
            dict(
                image_size=[64, 64], embed_dim=16, patch_size=[7, 7], patch_stride=[4, 4],
                depths=[1, 1, 1], num_heads=[1, 2, 4], masked_unit_size=[8, 8],
                query_stride=[2, 2], num_query_pool=2,
            ),
        ),
        "vitdet": ("VitDetModel", dict(window_block_indices=[0], window_size=2)),
        "donut": ("DonutSwinModel", WINDOWS),
        "swiftformer": ("SwiftFormerModel", {}),
        "textnet": ("TextNetModel", {}),
        "vit_msn": ("ViTMSNModel", {}),
        "aimv2": ("Aimv2VisionModel", {}),
    },
    "images as they are": {
        "detr": (
            "DetrForObjectDetection",
            dict(
                use_timm_backbone=True, use_pretrained_backbone=False, backbone="resnet18",
                backbone_config=None, num_queries=5,
            ),
        ),
    },
    "film": {"timesformer": ("TimesformerModel", dict(num_frames=4))},
    "codec": {
        "encodec": (
            "EncodecModel",
            dict(num_filters=8, hidden_size=16, codebook_size=32, codebook_dim=16),
        ),
    },
    "speech": {
        "speech2text": (
            "Speech2TextForConditionalGeneration",
            dict(input_feat_per_channel=16, conv_channels=32),
        ),
    },
    "spectrogram": {"ast": ("ASTModel", dict(max_length=64, num_mel_bins=32))},
    "text and image": {
        "clip": (
            "CLIPModel",
            dict(
                text_config=dict(**TOWER, vocab_size=100, max_position_embeddings=64),
                vision_config=dict(**TOWER, image_size=224, patch_size=32),
            ),
        ),
    },
    "page": {
        "layoutlmv3": (
            "LayoutLMv3Model",
            dict(
                input_size=64, coordinate_size=6, shape_size=4, max_2d_position_embeddings=64
            ),
        ),
    },
}  # fmt: skip


def inputs():
    """Of each kind: (argument of ``forward``, name in the file, value, its dynamic axes) ..."""
    ids = torch.randint(3, 90, (2, 12))
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, 8:] = 0
    tokens = ("input_ids", "ids", ids, {0: "batch", 1: "seq"})
    masked = ("attention_mask", "mask", mask, {0: "batch", 1: "seq"})
    decoded = ("decoder_input_ids", "dec", ids[:, :7], {0: "batch", 1: "dseq"})
    fixed_tokens, fixed_mask = (*tokens[:3], None), (*masked[:3], None)
    per_example = {0: "batch"}

    def images(*shape, dynamic=per_example):
        return [("pixel_values", "x", torch.randn(*shape), dynamic)]

    def waves(name, count, dynamic):
        return [("input_values", name, torch.randn(count, 3200), dynamic)]

    return {
        "text": [tokens, masked],
        "tokens of one size": [fixed_tokens],
        "tokens": [tokens],
        "two texts": [tokens, masked, decoded],
        "wave": waves("wav", 1, {0: "batch", 1: "time"}),
        "waves": waves("x", 2, {0: "batch", 1: "time"}),
        "mel and text": [
            ("input_features", "mel", torch.randn(1, 20, 100), None),
            ("decoder_input_ids", "dec", ids[:1, :5], {0: "b", 1: "n"}),
        ],
        "images of 32": images(2, 3, 32, 32),
        "image of 32": images(1, 3, 32, 32, dynamic=None),
        "image of 64": images(1, 3, 64, 64, dynamic=None),
        "batch of one of 64": images(1, 3, 64, 64),
        "images of 64": images(2, 3, 64, 64),
        "images as they are": images(2, 3, 64, 64, dynamic=None),
        "film": images(1, 4, 3, 64, 64),
        "codec": [("input_values", "x", torch.randn(1, 1, 640), None)],
        "speech": [
            ("input_features", "x", torch.randn(2, 40, 16), None),
            ("attention_mask", "m", torch.ones(2, 40, dtype=torch.int64), None),
            ("decoder_input_ids", "dec", ids[:, :6], None),
        ],
        "spectrogram": [("input_values", "x", torch.randn(2, 64, 32), {0: "b"})],
        "text and image": [
            fixed_tokens, *images(2, 3, 224, 224, dynamic=None), fixed_mask,
        ],
        "page": [
            fixed_tokens, ("bbox", "bbox", torch.randint(0, 50, (2, 12, 4)), None),
            fixed_mask, *images(2, 3, 64, 64, dynamic=None),
        ],
    }  # fmt: skip


class Net(torch.nn.Module):
    """A network with its inputs in order and its tensors in a tuple, as exports want them."""

    def __init__(self, m, keys):
        super().__init__()
        self.m, self.keys = m, keys

    def forward(self, *values):
        found = self.m(**dict(zip(self.keys, values)), return_dict=True)
        return tuple(v for v in found.values() if torch.is_tensor(v))


def configured(kind, only=False, **settings):
    """A configuration of a class, with the settings of ``SMALL`` that it knows unless ``only`` is
    set.
    """
    known = set(inspect.signature(kind.__init__).parameters)
    known |= {n for base in kind.__mro__ for n in getattr(base, "__annotations__", ())}
    more = {} if only else {n: v for n, v in SMALL.items() if n in known or hasattr(kind, n)}
    made = kind(**{**more, **settings})
    made._attn_implementation = "eager"
    if not only and hasattr(made, "use_cache"):
        made.use_cache = False
    return made


def transformers(save):
    """Save all networks; those that this version of transformers can't make are printed."""
    import transformers as library

    kinds = inputs()
    for kind, nets in NETS.items():
        keys, names, values, dynamic = zip(*kinds[kind])
        axes = {n: d for n, d in zip(names, dynamic) if d is not None} or None
        for name, (model, settings) in nets.items():
            torch.manual_seed(0)
            try:
                made = getattr(library, model)
                net = Net(made(configured(made.config_class, **settings)), keys)
            except Exception as error:
                text = str(error)[:160].replace("\n", " ")
                print(name, "CONFIG", type(error).__name__, text, flush=True)
                continue
            save(f"hf_{name}", net, values, axes, in_names=list(names))
